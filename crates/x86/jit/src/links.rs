//! What leads from block to block: jumps that are linked, and the targets of indirect branches.

use super::moving::may_move;
use super::targets::{self, Target};
use super::{Jit, Link, Translating, bucket};
use satori_soft::code_mode::{self, CodeKey};
use satori_soft::mmu::{Mode, Scope, canonical};

/// The translation of an address that was found, and whom that of the address belongs to.
#[derive(Clone, Copy)]
struct Reached {
    code: u64,
    scope: Scope,
    /// The page's first byte on the host, if the code was found there.
    host: Option<*const u8>,
}

impl Translating {
    /// The translation of the code at `rip`, if there is one already.
    fn known_code(&mut self, rip: u64) -> Option<Reached> {
        // The instructions of a page with a breakpoint are executed one at a time.
        if !canonical(rip) || self.cpu.breaks_in_page(rip) {
            return None;
        }
        if let Some(reached) = self.code_in_page(rip) {
            return Some(reached);
        }
        let block = self.blocks.known(&mut self.cpu, rip)?;
        // SAFETY: `block` was just looked up.
        let block = unsafe { &*block };
        if !block.translated() {
            return None;
        }
        let key = self.cpu.code_key(rip);
        let scope = self.blocks.scope_of(&self.cpu, key)?;
        let code = block.translation(key).or_else(|| {
            let local = scope == Scope::Local;
            self.jit.find(&mut self.context, std::ptr::from_ref(block).cast_mut(), (key, rip), local, true)
        })?;
        if block.crossing().is_none() {
            match block.moving_translation(key.in_page_of(rip)) {
                Some((moving, group)) if moving == code => {
                    self.jit.codes.note(block.host(), key.in_page_of(rip), code, Some(group));
                }
                _ => {
                    let anchor =
                        self.jit.number_at(code).and_then(|number| self.jit.blocks[number].parts.anchor);
                    self.jit.codes.note(block.host(), key, code, anchor);
                    if let Some(anchor) = anchor {
                        let local = scope == Scope::Local;
                        self.jit.arrive(&mut self.context, anchor, self.cpu.derived.code_mode, local);
                    }
                }
            }
        }
        Some(Reached { code, scope, host: None })
    }

    /// The same for code that was found before, without a look at its block.
    fn code_in_page(&mut self, rip: u64) -> Option<Reached> {
        let code_mode = self.cpu.derived.code_mode;
        // What was written since may be translated still; what was flushed may be thought to be in its place.
        if self.jit.is_behind(&self.cpu.mmu.fetches) {
            return None;
        }
        let (host, scope) = self.cpu.page_of_code(rip)?;
        // To find the page may have made translations void.
        if self.jit.is_behind(&self.cpu.mmu.fetches) {
            return None;
        }
        let key = CodeKey::of(rip, code_mode);
        let codes = &self.jit.codes;
        let moving = may_move(rip, code_mode).then(|| codes.find(host, key.in_page_of(rip))).flatten();
        let known = moving.or_else(|| codes.find(host, key))?;
        let reached = Reached { code: known.code, scope, host: Some(host) };
        let Some(home) = known.home() else { return Some(reached) };
        let local = scope == Scope::Local;
        if moving.is_some() {
            return self.jit.go_to(&mut self.context, home, (rip, code_mode), local, true).then_some(reached);
        }
        self.jit.arrive(&mut self.context, home, code_mode, local);
        Some(reached)
    }

    /// The code that `link` of code that is running leads to, if there is some already; the link leads there directly then, where
    /// it can. The context has the address.
    pub(super) fn follow(&mut self, link: u32) -> Option<u64> {
        let (rip, mode) = self.jit.place_of_link(link)?;
        self.context.unlinked = rip;
        // The mode may have changed within the block: what the link is for is found by nobody then.
        if mode != self.cpu.derived.code_mode {
            return None;
        }
        let reached = self.known_code(rip)?;
        self.lead(link, rip, reached);
        Some(reached.code)
    }

    /// Where the table has the code at `rip`, if there is some already, or else what leaves for that address, if
    /// code can be there.
    pub(super) fn find_target(&mut self, rip: u64) -> Option<*const Target> {
        if !canonical(rip) {
            return None;
        }
        if let Some(reached) = self.known_code(rip) {
            self.note(rip, reached);
            return Some(self.context.targets[self.table()].place_of(rip));
        }
        self.context.unknown.rip = rip;
        Some(&raw const self.context.unknown)
    }

    /// Lets `link` lead to `code`, the translation of the block at `rip`.
    pub(crate) fn link(&mut self, link: u32, rip: u64, code: u64) {
        if let Some(scope) = self.blocks.scope_of(&self.cpu, self.cpu.code_key(rip)) {
            self.lead(link, rip, Reached { code, scope, host: None });
        }
    }

    fn lead(&mut self, link: u32, rip: u64, Reached { code, scope, .. }: Reached) {
        let code_mode = self.cpu.derived.code_mode;
        let jit = &mut self.jit;
        // Its piece of the code memory may have been emptied meanwhile.
        if jit.place_of_link(link) != Some((rip, code_mode)) || !jit.is_placed(link) {
            return;
        }
        let Link { place, slot, code: before, target, source, group, fixed, .. } = jit.links[link];
        let again = before == code;
        let target = if again { Some(target) } else { jit.number_at(code) };
        if slot {
            jit.arena().write(place as usize, &code.to_le_bytes());
            let moves = group.is_some() || may_move(rip, code_mode);
            let side = code_mode::side(code_mode);
            for scope in scopes(scope, moves) {
                jit.dependents(side, *scope)[bucket(rip)].slots.push(link);
            }
        } else {
            // It is not taken back when the page is executed elsewhere.
            if target.is_none_or(|target| jit.group_of(target) != group) {
                return;
            }
            let distance = code.wrapping_sub(jit.address(place as usize) + 4) as i32;
            jit.arena().write(place as usize, &distance.to_le_bytes());
        }
        if !again && let Some(number) = target {
            jit.blocks[number].incoming.push(link);
            jit.links[link] = Link { code, target: number, ..jit.links[link] };
            if slot && !(fixed && group.is_some()) && scope == Scope::Local {
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
    /// came from code of `mode`.
    pub(crate) fn note_target(&mut self, mode: Mode, rip: u64, code: u64) {
        if mode == self.cpu.derived.mode
            && let Some(scope) = self.blocks.scope_of(&self.cpu, self.cpu.code_key(rip))
        {
            self.note(rip, Reached { code, scope, host: None });
        }
    }

    fn note(&mut self, rip: u64, Reached { code, scope, host }: Reached) {
        let (mode, code_mode) = (self.cpu.derived.mode, self.cpu.derived.code_mode);
        let table = self.table();
        self.context.targets[table].note(rip, code);
        let side = code_mode::side(code_mode);
        let moves = may_move(rip, code_mode);
        for scope in scopes(scope, moves) {
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
        let key = CodeKey::of(if moves { rip & 0xfff } else { rip }, code_mode);
        let returns = moves || scope == Scope::Local;
        if returns && host.is_none_or(|host| self.jit.codes.is_new_target(host, key, mode)) {
            self.jit.remember_target(rip, code, mode, code_mode);
        }
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
    /// The linear address that `link` goes to now, and the mode of the code there.
    fn place_of_link(&self, link: u32) -> Option<(u64, u64)> {
        let &Link { rip, mode, group, fixed, .. } = self.links.get(link)?;
        let page = group.filter(|_| !fixed).map_or(0, |group| self.groups.all[group as usize].linear);
        Some((page.wrapping_add(rip), mode))
    }

    /// Whether `link` may lead to other pages: where its block is is known, and a flush takes that back.
    fn is_placed(&self, link: u32) -> bool {
        self.links[link].group.is_none_or(|group| self.is_current(group))
    }
}
