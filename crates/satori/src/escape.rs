//! The escape character of the terminal, Ctrl-A.

/// Ctrl-A.
const ESCAPE: u8 = 0x01;

/// What the user asked for with Ctrl-A.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Ctrl-A x: end the guest.
    Quit,
    /// Ctrl-A h, or Ctrl-A ?: print the help.
    Help,
    /// Ctrl-A p: press the power button.
    PowerButton,
    /// Ctrl-A b: send a break, behind as many bytes of the guest's as were typed before it.
    Break(usize),
}

/// What Ctrl-A h prints.
pub const HELP: &str = "Ctrl-A x ends the guest, Ctrl-A p presses its power button, Ctrl-A a sends Ctrl-A, Ctrl-A b a break (Linux: SysRq), Ctrl-A h prints this.";

/// Splits what is typed into bytes for the guest and commands for Satori.
#[derive(Debug, Default)]
pub struct Escape {
    /// Ctrl-A was the last byte.
    armed: bool,
}

impl Escape {
    /// Takes `typed`, appends what is the guest's to `guest`, and tells the commands in order.
    ///
    /// Bytes after [`Command::Quit`] are dropped. Any other byte after Ctrl-A is dropped with
    /// it, so that a slip of the finger does not reach the guest.
    pub fn feed(&mut self, typed: &[u8], guest: &mut Vec<u8>) -> Vec<Command> {
        let mut commands = Vec::new();
        for &byte in typed {
            if !std::mem::take(&mut self.armed) {
                match byte {
                    ESCAPE => self.armed = true,
                    _ => guest.push(byte),
                }
                continue;
            }
            match byte {
                // Ctrl-A Ctrl-A too, as in screen(1) with its `a`.
                b'a' | ESCAPE => guest.push(ESCAPE),
                b'b' => commands.push(Command::Break(guest.len())),
                b'p' => commands.push(Command::PowerButton),
                b'h' | b'?' => commands.push(Command::Help),
                b'x' => {
                    commands.push(Command::Quit);
                    break;
                }
                _ => {}
            }
        }
        commands
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(pieces: &[&[u8]]) -> (Vec<u8>, Vec<Command>) {
        let (mut escape, mut guest, mut commands) = (Escape::default(), Vec::new(), Vec::new());
        for piece in pieces {
            commands.extend(escape.feed(piece, &mut guest));
        }
        (guest, commands)
    }

    #[test]
    fn plain_bytes_pass_untouched() {
        let all: Vec<u8> = (0..=255).filter(|&b| b != ESCAPE).collect();
        assert_eq!(feed(&[&all]), (all, vec![]));
    }

    #[test]
    fn commands_work_across_reads() {
        assert_eq!(
            feed(&[b"l\x01", b"as\x01h\x01p\x01", b"x", b""]),
            (b"l\x01s".to_vec(), vec![Command::Help, Command::PowerButton, Command::Quit])
        );
    }

    #[test]
    fn a_break_keeps_its_place() {
        assert_eq!(feed(&[b"ab\x01b\x01bh"]), (b"abh".to_vec(), vec![Command::Break(2), Command::Break(2)]));
    }

    #[test]
    fn unknown_commands_reach_nobody() {
        assert_eq!(feed(&[b"\x01q!"]), (b"!".to_vec(), vec![]));
    }
}
