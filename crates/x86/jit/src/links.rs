//! What leads from block to block: jumps that are linked, and the targets of indirect branches.

use super::moving::may_move;
use super::targets::{self, Target};
use super::{Jit, Link, Translating, bucket};
use satori_soft::code_mode::{self, CodeKey};
use satori_soft::mmu::{Mode, Scope, canonical};

impl Translating {
    /// The translation of the code at `rip`, if there is one already.
    fn known_code(&mut self, rip: u64) -> Option<u64> {
        if !canonical(rip) {
            return None;
        }
        let block = self.blocks.known(&mut self.cpu, rip)?;
        // SAFETY: `block` was just looked up.
        if unsafe { !(*block).translated() } {
            return None;
        }
        let key = self.cpu.code_key(rip);
        // SAFETY: `block` was just looked up.
        let found = unsafe { (*block).translation(key) };
        found.or_else(|| {
            let local = self.blocks.scope_of(&self.cpu, key) == Some(Scope::Local);
            self.jit.find(&mut self.context, block, (key, rip), local, true)
        })
    }

    /// The code that `link` of code that is running leads to, if there is some already; the link leads there directly then, where
    /// it can. The context has the address.
    pub(super) fn follow(&mut self, link: u32) -> Option<u64> {
        // The mode may have changed within the block: what the link is for is found by nobody then.
        self.context.unlinked = self.jit.rip_of_link(link)?;
        let rip = self.jit.key_of_link(link)?.linear_in(self.cpu.derived.code_mode);
        let code = self.known_code(rip)?;
        self.link(link, rip, code);
        Some(code)
    }

    /// Where the table has the code at `rip`, if there is some already, or else what leaves for that address, if
    /// code can be there.
    pub(super) fn find_target(&mut self, rip: u64) -> Option<*const Target> {
        if !canonical(rip) {
            return None;
        }
        if let Some(code) = self.known_code(rip)
            && self.note_target(self.cpu.derived.mode, rip, code)
        {
            return Some(self.context.targets[self.table()].place_of(rip));
        }
        self.context.unknown.rip = rip;
        Some(&raw const self.context.unknown)
    }

    /// Lets `link` lead to `code`, the translation of the block at `rip`.
    pub(crate) fn link(&mut self, link: u32, rip: u64, code: u64) {
        let key = self.cpu.code_key(rip);
        let scope = self.blocks.scope_of(&self.cpu, key);
        let jit = &mut self.jit;
        // Its piece of the code memory may have been emptied meanwhile.
        let Some(wanted) = jit.key_of_link(link) else { return };
        let Link { place, slot, code: before, target, source, fixed, .. } = jit.links[link];
        if wanted != key || !jit.is_placed(source) {
            return;
        }
        let again = before == code;
        let target = if again { Some(target) } else { jit.number_at(code) };
        if slot {
            let Some(scope) = scope else { return };
            jit.arena().write(place, &code.to_le_bytes());
            let moves = may_move(rip, self.cpu.derived.code_mode) || jit.group_of(source).is_some();
            let side = code_mode::side(self.cpu.derived.code_mode);
            for scope in scopes(scope, moves) {
                jit.dependents(side, *scope)[bucket(rip)].slots.push(link);
            }
        } else {
            // It is not taken back when the page is executed elsewhere.
            if target.is_none_or(|target| jit.group_of(target) != jit.group_of(source)) {
                return;
            }
            let distance = code.wrapping_sub(jit.address(place) + 4) as i32;
            jit.arena().write(place, &distance.to_le_bytes());
        }
        if !again && let Some(number) = target {
            jit.blocks[number].incoming.push(link);
            jit.links[link] = Link { code, target: number, ..jit.links[link] };
            if slot && !fixed && scope == Some(Scope::Local) {
                jit.remember_link(link, source, number, code);
            }
        }
        jit.counts.linked += 1;
    }

    /// The table of the targets of the code that is executed.
    fn table(&self) -> usize {
        targets::table(self.cpu.derived.mode, self.cpu.derived.code_mode)
    }

    /// The code at RIP, if the table of targets has it.
    pub(crate) fn known_target(&mut self) -> Option<u64> {
        self.refresh();
        let rip = self.cpu.state.rip;
        self.context.targets[self.table()].find(rip)
    }

    /// Notes `code`, the translation of the block at `rip`, as a target of indirect branches that
    /// came from code of `mode`; whether it did.
    pub(crate) fn note_target(&mut self, mode: Mode, rip: u64, code: u64) -> bool {
        if mode != self.cpu.derived.mode {
            return false;
        }
        let Some(scope) = self.blocks.scope_of(&self.cpu, self.cpu.code_key(rip)) else { return false };
        let table = self.table();
        self.context.targets[table].note(rip, code);
        let side = code_mode::side(self.cpu.derived.code_mode);
        for scope in scopes(scope, may_move(rip, self.cpu.derived.code_mode)) {
            let targets = &mut self.jit.dependents(side, *scope)[bucket(rip)].targets;
            if targets.len() == targets.capacity() {
                // Targets that push each other out come again and again.
                targets.sort_unstable();
                targets.dedup();
                // Looked at again when there are twice as many.
                targets.reserve(targets.len());
            }
            targets.push((table as u8, targets::set_of(rip) as u16));
        }
        self.jit.remember_target(rip, code, mode, self.cpu.derived.code_mode);
        true
    }
}

/// The flushes behind which links to code of `scope` must be taken back. Code that `moves` is linked by its distance, which another
/// address space changes: so a local flush concerns it even where its mapping is global.
pub(crate) fn scopes(scope: Scope, moves: bool) -> &'static [Scope] {
    match scope {
        Scope::Local => &[Scope::Local],
        Scope::Global if moves => &[Scope::Local, Scope::Global],
        Scope::Global => &[Scope::Global],
    }
}

impl Jit {
    /// The linear address that `link` goes to.
    fn rip_of_link(&self, link: u32) -> Option<u64> {
        let &Link { rip, source, fixed, .. } = self.links.get(link)?;
        Some(if fixed { rip } else { rip.wrapping_add(self.distance_of(source)) })
    }

    /// Where `link` goes, and in which mode.
    fn key_of_link(&self, link: u32) -> Option<CodeKey> {
        let &Link { key, source, fixed, .. } = self.links.get(link)?;
        Some(if fixed { key } else { key.moved(self.distance_of(source)) })
    }
}
