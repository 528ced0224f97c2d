//! What translated code calls to open windows.

use satori_engine::Doing;

use super::super::Translating;
use super::super::moving::place_in_table;
use super::{APART, APART_WIDE, BESIDE, CROSSINGS, LEAVINGS, Range, SPAN};

/// Called by translated code: translates the access at `linear` and opens the window around it.
/// Returns the distance to the host's memory, or 0 if the access must stand alone; the context has the code
/// for that then, if it can be translated.
pub(crate) extern "sysv64" fn open(vcpu: &mut Translating, linear: u64, range: &Range) -> u64 {
    vcpu.jit.counts.misses += 1;
    vcpu.context.without = 0;
    let (size, write) = (u64::from(range.size), range.write);
    vcpu.cpu.doing().set(Doing::Missing);
    if write {
        vcpu.expect_store(linear, range.block);
    }
    let cached = vcpu.cpu.cache_translation(linear, size, write);
    vcpu.cpu.doing().set(Doing::Translated);
    if !cached {
        if (linear & 0xfff) + size > 0x1000 {
            // An access in two pages has ways of its own, which need no window.
            vcpu.context.without = vcpu.go_on_without(range).unwrap_or(0);
        }
        return 0;
    }
    let Some((host, state)) = vcpu.cpu.mmu.tlb.lookup(linear, size, vcpu.cpu.derived.mode, write) else {
        return 0;
    };
    let addend = (host as u64).wrapping_sub(linear);
    let page = |linear: u64| linear & !0xfff;
    let first = page(linear.wrapping_add_signed(range.low));
    let last = page(linear.wrapping_add_signed(range.high - 1));
    if first != last {
        // A range in one piece on the host is as good, if its other page may be reached too: this
        // access does not touch that, and must leave no trace there.
        let other = if page(linear) == first { last } else { first };
        let same = |host: *mut u8| (host as u64).wrapping_sub(other) == addend;
        let whole = vcpu
            .cpu
            .mmu
            .tlb
            .lookup(other, 1, vcpu.cpu.derived.mode, write)
            .is_some_and(|(host, _)| same(host));
        let beyond = !vcpu.cpu.derived.code64 && (first | last) >> 32 != 0;
        if !whole || beyond || vcpu.cpu.parallel() && write {
            vcpu.context.without = vcpu.go_on_without(range).unwrap_or(0);
            return 0;
        }
    }
    let pages = if range.wide { vcpu.pages_beside(linear, addend, write) } else { (0, 0) };
    let window = &mut vcpu.context.windows[usize::from(range.window)];
    window.state = state as u64;
    if range.paged {
        // Where the range is in two pages, or all of it in another one than the access, that was seen to lie together.
        let before = page(linear).wrapping_sub(pages.0);
        window.page = before;
        window.place = if range.absolute { addend.wrapping_add(before) } else { addend };
        window.limit = (pages.0 + 0x1000 + pages.1).saturating_sub((range.high - 1 - range.low) as u64);
    }
    addend
}

/// Called by translated code: the window `range` crossed a page boundary [`CROSSINGS`] times, the last time for the access at
/// `linear`. Each crossing costs a call even where the pages are adjacent on the host. If they came fast, the block is made anew
/// with a window for only those accesses that share `linear`'s page now.
pub(crate) extern "sysv64" fn crossed(vcpu: &mut Translating, linear: u64, range: &Range) -> u64 {
    let (now, key) = (vcpu.retired_by_now(), vcpu.cpu.code_key(vcpu.rip_of(range)));
    let since = now.wrapping_sub(range.crossed_at.replace(now)) / CROSSINGS as u64;
    let there = range.crossed_with.replace(linear) == linear;
    range.crossings.set(CROSSINGS);
    let jit = &mut vcpu.jit;
    if since < range.soon || there && since < range.soon_there {
        let first = -((linear & 0xfff) as i64);
        let before = *jit.extents.get(&key).unwrap_or(&(-SPAN, SPAN));
        let after = (before.0.max(first), before.1.min(first + 0x1000));
        // An access that crosses by itself has no window.
        jit.extents.insert(key, if after == before { (0, 0) } else { after });
        jit.retire(&mut vcpu.context, range.block);
    }
    0
}

/// Called by translated code: accesses in loops, at last in block `number`, left their pages many times.
pub(crate) extern "sysv64" fn scattered(vcpu: &mut Translating, number: u64) -> u64 {
    let now = vcpu.retired_by_now();
    let context = &mut vcpu.context;
    let since = now.wrapping_sub(context.left_pages_at) / LEAVINGS as u64;
    (context.left_pages, context.left_pages_at) = (LEAVINGS, now);
    let jit = &mut vcpu.jit;
    if jit.blocks.get(number as u32).is_some() {
        let key = jit.key_of(number as u32);
        let wide = jit.wide.contains(&key);
        if since < if wide { APART_WIDE } else { APART } {
            if wide { &mut jit.scattered } else { &mut jit.wide }.insert(key);
            jit.retire(&mut vcpu.context, number as u32);
        }
    }
    0
}

impl Translating {
    /// How many bytes before and behind the page of `linear` have the same distance between host and linear address as it (`addend`),
    /// and allow the access: so far one window may reach.
    fn pages_beside(&self, linear: u64, addend: u64, write: bool) -> (u64, u64) {
        if write && self.cpu.parallel() {
            // Who stores looks at the state of the one page.
            return (0, 0);
        }
        let reached = |at: u64| {
            let found = self
                .cpu
                .mmu
                .tlb
                .lookup(at, 1, self.cpu.derived.mode, write)
                .filter(|_| self.cpu.derived.code64 || at >> 32 == 0);
            found.is_some_and(|(host, _)| (host as u64).wrapping_sub(at) == addend)
        };
        let page = linear & !0xfff;
        let before = (1..=BESIDE).take_while(|n| reached(page.wrapping_sub(n << 12))).count();
        let behind = (1..=BESIDE).take_while(|n| reached(page.wrapping_add(n << 12))).count();
        (before as u64 * 0x1000, behind as u64 * 0x1000)
    }

    /// Instructions retired, as far as translated code says.
    fn retired_by_now(&self) -> u64 {
        let paid = self.started - self.context.budget - self.context.left;
        self.cpu.retired().wrapping_add(paid as u64)
    }

    /// `range` is in several pieces: the code that goes on from its instruction without windows.
    #[cold]
    fn go_on_without(&mut self, range: &Range) -> Option<u64> {
        let jit = &self.jit;
        let rip = self.rip_of(range);
        let key = self.cpu.code_key(rip);
        let whole = jit.blocks.get(range.block).map(|block| (block.block, block.parts.group.is_some()));
        let code = whole.and_then(|(block, moves)| {
            // Where the block may be anywhere, but this cannot, it is of one address.
            let known = |moves| jit.rests.get(&place_in_table(key, rip, block, moves)).copied();
            let of_page = known(moves).filter(|_| !moves || jit.is_at(range.block, rip));
            of_page.or_else(|| known(false))
        });
        let code = code.or_else(|| self.translate_rest(range.block, rip, key));
        if let Some(code) = code {
            let jit = &self.jit;
            let same =
                jit.number_at(code).is_some_and(|rest| jit.group_of(rest) == jit.group_of(range.block));
            range.without.set(if same { code } else { 0 });
        }
        code
    }

    /// Where the instruction of `range` is.
    fn rip_of(&self, range: &Range) -> u64 {
        range.rip.wrapping_add(self.jit.distance_of(range.made_in))
    }
}
