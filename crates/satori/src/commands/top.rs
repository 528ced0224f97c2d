//! `satori top`: what a running guest exits for, as it happens.

pub mod own;
mod rates;
mod view;

use std::ffi::OsString;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, ValueHint};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use satori_profile::{FORMAT, LIVE_VERSION, Live};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::status::Status;
use crate::units;
use own::{End, Own};
use rates::Rates;

/// Behind the long help.
pub const FOOTER: &str = "\
Example:
  satori run --stats-socket /tmp/guest.sock --kernel vmlinuz --initrd initrd &
  satori top /tmp/guest.sock           draws, until q
  satori top --once /tmp/guest.sock    prints one picture, for a script
  satori top -- run --kernel vmlinuz   starts the guest itself, and tells its report when it ends

Exit status with 'top -- run': the guest's own, if it ended by itself; 0 if it was ended with the last picture.

Rates are of guest time. Names of functions are those of the guest's kernel, where it has a kallsyms table.";

/// How long an answer is waited for: the first one looks through the guest's memory for names.
const PATIENCE: Duration = Duration::from_secs(15);
/// The longest line that is taken for an answer.
const LONGEST: u64 = 16 << 20;
/// Bounds of the interval.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));

/// `satori top`.
#[derive(Debug, Args)]
pub struct Top {
    /// The socket of `satori run --stats-socket`
    #[arg(value_hint = ValueHint::FilePath, required_unless_present = "command", conflicts_with = "command")]
    pub socket: Option<PathBuf>,
    /// Between two pictures: 500ms, 2s, 1m
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = units::duration)]
    pub delay: Duration,
    /// Print text instead of drawing on the terminal
    #[arg(short, long)]
    pub batch: bool,
    /// Print one text and end: --batch --count 1
    #[arg(long, conflicts_with = "count")]
    pub once: bool,
    /// End after so many pictures
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Where the console of the guest goes that is started here; it is not shown
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "command")]
    pub console: Option<PathBuf>,
    /// A guest that is started here, and ended with the last picture: 'run' and its options
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// A machine that answers.
struct Source(BufReader<UnixStream>);

impl Source {
    fn connect(path: &Path) -> Result<Self> {
        let shown = path.display();
        let stream = UnixStream::connect(path).map_err(|why| {
            let text = why.to_string();
            let text = text.split(" (os error").next().unwrap_or_default();
            anyhow!("cannot reach a guest at {shown} ({text}): start one with 'satori run --stats-socket {shown} ..'")
        })?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Source(BufReader::new(stream)))
    }

    /// A picture; none if the guest has ended.
    fn ask(&mut self) -> Result<Option<Live>> {
        use std::io::{ErrorKind, Read};
        let gone = |kind| matches!(kind, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset);
        match self.0.get_mut().write_all(b"\n") {
            Err(error) if gone(error.kind()) => return Ok(None),
            other => other.context("cannot ask the guest")?,
        }
        let mut line = String::new();
        match self.0.by_ref().take(LONGEST).read_line(&mut line) {
            Err(error) if gone(error.kind()) => return Ok(None),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                bail!(
                    "no answer within {} s: is it the socket of 'satori run --stats-socket'?",
                    PATIENCE.as_secs()
                )
            }
            Err(error) => return Err(error).context("what answers there is no Satori"),
            Ok(0) => return Ok(None),
            Ok(_) => {}
        }
        let live: Live = serde_json::from_str(&line)
            .map_err(|error| anyhow!("what answers there is no Satori of this kind: {error}"))?;
        if live.format != FORMAT || live.version != LIVE_VERSION {
            bail!(
                "it answers with '{}' version {}, and this is version {LIVE_VERSION}: use the same Satori",
                live.format,
                live.version
            );
        }
        Ok(Some(live))
    }
}

/// Does what `satori top` was told.
pub fn top(flags: &Top, out: &mut dyn Write) -> Result<Status> {
    let batch = flags.batch || flags.once;
    if !batch && !std::io::stdout().is_terminal() {
        bail!("standard output is no terminal: add --batch or --once");
    }
    let own = match flags.socket {
        None => Some(Own::start(&flags.command, flags.console.as_deref())?),
        Some(_) => None,
    };
    let Some(own) = own else {
        let source = Source::connect(flags.socket.as_deref().unwrap_or(Path::new("")))?;
        return watch(flags, source, batch, out).map(|_| Status::Ok);
    };
    end_on_signals(own.ender(), !batch)?;
    let watched = Source::connect(&own.socket()).and_then(|source| {
        own.connected();
        watch(flags, source, batch, out)
    });
    let over = !matches!(watched, Ok(Seen::Enough));
    match own.finish(over, &mut std::io::stderr())? {
        End::Ours => watched.map(|_| Status::Ok),
        // A guest that ended before somebody looked tells why in its own words.
        End::Own(status) => Ok(Status::Guest(status)),
    }
}

/// Whoever ends this program ends the guest that it started.
fn end_on_signals(end: impl Fn() + Send + 'static, drawing: bool) -> Result<()> {
    let (mut seen, told) = UnixStream::pair()?;
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        signal_hook::low_level::pipe::register(signal, told.try_clone()?)?;
    }
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        use std::io::Read;
        if let Ok(1..) = seen.read(&mut [0]) {
            if drawing {
                ratatui::restore();
            }
            end();
            std::process::exit(Status::User.code().into());
        }
    })?;
    Ok(())
}

/// Why no more pictures are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// Somebody has seen enough.
    Enough,
    /// The guest has ended.
    End,
}

fn watch(flags: &Top, mut source: Source, batch: bool, out: &mut dyn Write) -> Result<Seen> {
    let count = if flags.once { 1 } else { flags.count.unwrap_or(u64::MAX) };
    let delay = flags.delay.clamp(INTERVALS.0, INTERVALS.1);
    let Some(mut before) = source.ask()? else { bail!("the guest has ended") };
    if !batch {
        return screen(source, before, delay, count);
    }
    for picture in 0..count {
        std::thread::sleep(delay);
        let Some(now) = source.ask()? else {
            return if picture > 0 { Ok(Seen::End) } else { Err(anyhow!("the guest has ended")) };
        };
        let between = if picture > 0 { "\n" } else { "" };
        write!(out, "{between}{}", view::text(&Rates::between(&before, &now)))?;
        out.flush()?;
        before = now;
    }
    Ok(Seen::Enough)
}

/// Draws until somebody has seen enough, or the guest ends.
fn screen(mut source: Source, mut before: Live, mut delay: Duration, count: u64) -> Result<Seen> {
    let mut terminal = ratatui::try_init().context("cannot draw on this terminal: add --batch")?;
    let mut rates = Rates::between(&Live::default(), &before);
    let (mut paused, mut ended, mut pictures) = (false, false, 0);
    let mut next = Instant::now() + delay;
    let watched = (|| -> Result<Seen> {
        loop {
            let state = match (ended, paused) {
                (true, _) => "   the guest has ended".to_owned(),
                (_, true) => "   paused".to_owned(),
                _ => format!("   every {:.1} s", delay.as_secs_f64()),
            };
            terminal.draw(|frame| view::draw(frame, &rates, &state))?;
            let seen = if ended { Seen::End } else { Seen::Enough };
            if pictures >= count {
                return Ok(seen);
            }
            let wait =
                if ended || paused { INTERVALS.1 } else { next.saturating_duration_since(Instant::now()) };
            if event::poll(wait)? {
                let Event::Key(key) = event::read()? else { continue };
                match key.code {
                    _ if key.kind != KeyEventKind::Press => {}
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(seen),
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(seen),
                    KeyCode::Char(' ') => paused = !paused,
                    KeyCode::Char('+') => delay = (delay / 2).max(INTERVALS.0),
                    KeyCode::Char('-') => delay = (delay * 2).min(INTERVALS.1),
                    _ => {}
                }
                continue;
            }
            if ended || paused {
                continue;
            }
            match source.ask()? {
                Some(now) => {
                    rates = Rates::between(&before, &now);
                    before = now;
                    pictures += 1;
                }
                None => ended = true,
            }
            next = Instant::now() + delay;
        }
    })();
    ratatui::restore();
    watched
}
