//! From a block that is hot to code that is in use: choosing what to translate, and installing what was made of it.

use std::rc::Rc;

use iced_x86::{Instruction, InstructionInfoFactory};
use satori_engine::{Made, Origin};
use satori_soft::block::Block;
use satori_soft::code_mode::CodeKey;
use satori_soft::cpu::Cpu;
use satori_soft::mmu::Mode;

use super::cold::Seldom;
use super::flags::Effect;
use super::kept::{Source, Use};
use super::lower::{NewLink, Order, Translation, make};
use super::moving::{Parts, place_in_table};
use super::reach::{Page, Reach};
use super::window::Step;
use super::{Jit, Link, Translated, Translating, trace};

/// Code memory that a block may take.
pub(crate) const ROOM: usize = 512 << 10;

/// Instructions that a vCPU retires before its code is moved to large pages of the host: boots and short runs would not get back
/// what that costs, a millisecond or two each.
pub(crate) const ENLARGE_FROM: u64 = 3 << 29;
/// Instructions between two of these moves, so that they take no more than a few hundredths of the time.
const ENLARGE_EVERY: u64 = 1 << 26;

/// What translations use one after the other, so that none has to ask for memory.
pub(crate) struct Spare {
    pub info: InstructionInfoFactory,
    pub all: Vec<Instruction>,
    pub source: Source,
    pub effects: Vec<Effect>,
    pub steps: Vec<Step>,
    pub cold: Vec<Seldom>,
    pub taken: Vec<Seldom>,
    pub links: Vec<NewLink>,
}

impl Default for Spare {
    fn default() -> Self {
        Spare {
            info: InstructionInfoFactory::new(),
            all: Vec::new(),
            source: Source::default(),
            effects: Vec::new(),
            steps: Vec::new(),
            cold: Vec::new(),
            taken: Vec::new(),
            links: Vec::new(),
        }
    }
}

/// There is no room in the piece of the code memory that is being filled.
struct Full;

impl Translating {
    /// Translates `block`, which stands at RIP. Nothing if there is nothing to gain.
    pub(crate) fn translate(&mut self, block: *mut Block, key: CodeKey) -> Option<u64> {
        let rip = self.cpu.state.rip;
        if !self.cpu.derived.code64 && rip >> 12 == 0xf_ffff {
            // What comes behind it is at address 0.
            return None;
        }
        // SAFETY: the block was just looked up.
        let block = unsafe { &*block };
        let mut pages = vec![Page::of(block, rip)];
        pages.extend(Page::behind(block, rip));
        match self.bring(block, pages.clone(), (rip, key), None) {
            Ok(code) => code,
            Err(Full) => {
                self.jit.next_piece(&mut self.context);
                self.bring(block, pages, (rip, key), None).unwrap_or(None)
            }
        }
    }

    /// Translates from the instruction at `rip` on without windows, for block `number`, which is executing and whose window lies
    /// in pages that are apart on the host. Nothing if there is no room.
    pub(crate) fn translate_rest(&mut self, number: u32, rip: u64, key: CodeKey) -> Option<u64> {
        // What it needs is not known before it is made.
        if !self.jit.has_room(ROOM / 16, ROOM / 16, 256) {
            return None;
        }
        let whole = self.jit.blocks.get(number)?;
        // SAFETY: blocks are freed only to make room, when no translated code runs.
        let block = unsafe { &*whole.block };
        let pages = match &whole.reach {
            Some(reach) => {
                // It may be entered from another block that begins in the same page, and goes on elsewhere.
                let (own, other): (Vec<Page>, Vec<Page>) = reach.pages.iter().partition(|page| page.has(rip));
                own.into_iter().chain(other).map(|page| Page { sure: false, ..page }).collect()
            }
            None => vec![Page::of(block, rip)],
        };
        self.bring(block, pages, (rip, key), Some(number)).unwrap_or(None)
    }

    /// Makes code for `block`, which is in `pages`, and puts it to use: where it is.
    fn bring(
        &mut self,
        block: &Block,
        pages: Vec<Page>,
        at: (u64, CodeKey),
        whole: Option<u32>,
    ) -> Result<Option<u64>, Full> {
        let Some(order) = self.order(block, pages, at, whole) else { return Ok(None) };
        let translation = make(&self.cpu, &mut self.jit, &order);
        self.jit.install(&self.cpu, order, translation).map(Some)
    }

    /// What to translate from `rip` on, in the mode that `key` says too.
    fn order<'a>(
        &mut self,
        block: &'a Block,
        pages: Vec<Page>,
        (rip, key): (u64, CodeKey),
        whole: Option<u32>,
    ) -> Option<Order<'a>> {
        let Translating { cpu, blocks, context, jit, .. } = self;
        let number = jit.blocks.next(jit.place.piece);
        let further = whole.is_none() && jit.may_reach(key);
        let hot = jit.manner.hot;
        let spare = (std::mem::take(&mut jit.spare.all), std::mem::take(&mut jit.spare.source));
        let mut trace = trace::instructions(cpu, blocks, rip, pages.clone(), (further, hot), spare);
        if !jit.make_sure(cpu, number, &mut trace.pages) {
            trace = trace::instructions(cpu, blocks, rip, pages, (false, hot), (trace.all, trace.source));
            if !jit.make_sure(cpu, number, &mut trace.pages) {
                return None;
            }
        }
        let (all, pages, source, often) = (trace.all, trace.pages, trace.source, trace.often);
        // Bytes that changed under way make the block invalid.
        if all.is_empty() || !block.valid() || !pages.iter().all(Page::valid) {
            return None;
        }
        let group = jit.group_for(context, &pages[0], (rip, key), whole);
        let anchor = jit.anchor_for(&pages[0], rip, key.mode_at(rip));
        Some(Order { block, all: Rc::new(all), pages, source, often, rip, key, number, whole, group, anchor })
    }
}

impl Jit {
    /// Takes `translation`, made of `order`, from the assembler's buffer into the code memory, and into all tables.
    fn install(&mut self, cpu: &Cpu, order: Order<'_>, translation: Translation) -> Result<u64, Full> {
        let Order { block, all, pages, source, rip, key, number, whole, group, anchor, .. } = order;
        let Translation { mut links, mut values, sites, ranges, leave, check } = translation;
        let piece = self.place.piece;
        let (often, seldom) = (self.asm.part(), self.asm.code.len() - self.asm.part());
        if !self.has_room(often, seldom, links.len()) {
            return Err(Full);
        }
        self.counts.translated += 1;
        self.counts.instructions += all.len() as u64;
        self.counts.generic += sites.len() as u64;
        self.counts.bytes += self.asm.code.len() as u64;
        let count = links.len() as u32;
        for link in links.drain(..) {
            let link = self.settle_link(link, (number, rip), group);
            self.links.push(piece, link);
        }
        let first_link = self.links.next(piece) - count;
        self.spare.links = links;
        self.spare.all = Rc::try_unwrap(all).unwrap_or_default();
        values.iter_mut().for_each(|(place, _)| *place = self.placed(*place));
        let parts = Parts { sites, ranges, links: first_link..first_link + count, values, group, anchor };
        let part = self.sources[piece].append(&source);
        self.spare.source = source;
        block.set_translated();
        let (entry, leave) = (self.place.often, self.placed(leave));
        let check = check.map(|check| self.placed(check));
        self.write_code(cpu, rip);
        for page in &pages {
            self.pages.entry(page.state).or_default().push(number);
        }
        let value = pages[0].value;
        let head = self.asm.code.first_chunk().copied().unwrap_or_default();
        let reach = check.map(|check| Box::new(Reach { pages, rip, head, check }));
        let (block, mode, rest) = (std::ptr::from_ref(block).cast_mut(), cpu.derived.mode, whole.is_some());
        let whole = whole.unwrap_or(number);
        self.blocks.push(
            piece,
            Translated {
                block,
                entry,
                leave,
                rip,
                mode,
                key,
                rest,
                whole,
                incoming: Vec::new(),
                reach,
                parts,
                value,
                source: part,
                used: Use::Open,
            },
        );
        self.join(group, number);
        let code = self.address(entry);
        let place = place_in_table(key, rip, block, group.is_some());
        if rest { &mut self.rests } else { &mut self.table }.insert(place, code);
        self.by_entry.set(entry, Some(number));
        Ok(code)
    }

    /// `link` of block `number` at `rip`, led to the dispatcher, with places in the code memory.
    fn settle_link(&mut self, link: NewLink, (number, rip): (u32, u64), group: Option<u32>) -> Link {
        let place = match link.slot {
            Some(slot) => self.asm.offset(slot),
            None => link.place,
        };
        let unlinked = self.asm.offset(link.unlinked);
        if link.slot.is_some() {
            let address = self.asm.address(unlinked);
            self.asm.code[place..place + 8].copy_from_slice(&address.to_le_bytes());
        }
        Link {
            rip: if group.is_some() && !link.fixed { link.rip.wrapping_sub(rip & !0xfff) } else { link.rip },
            mode: link.key.mode_at(link.rip),
            place: self.placed(place) as u32,
            unlinked: self.placed(unlinked) as u32,
            slot: link.slot.is_some(),
            code: 0,
            target: 0,
            source: number,
            group,
            fixed: link.fixed,
        }
    }

    /// Writes what the assembler has, of a block at `rip`, to the next place in the code memory.
    fn write_code(&mut self, cpu: &Cpu, rip: u64) {
        let code = std::mem::take(&mut self.asm.code);
        let (often, seldom) = code.split_at(self.asm.part());
        let (entry, at) = (self.place.often, self.place.seldom);
        self.arena().write(entry, often);
        self.arena().write(at, seldom);
        self.place.take(often.len(), seldom.len());
        let (often_end, seldom_end) = (self.place.often, self.place.seldom);
        self.arena().reached(entry, often_end);
        self.arena().reached(at, seldom_end);
        if cpu.retired() >= self.enlarge_at {
            self.enlarge_at = cpu.retired() + ENLARGE_EVERY;
            self.arena().enlarge();
        }
        self.counts.most = self.counts.most.max(self.place.in_use() as u64);
        if let Some(watcher) = &self.manner.watcher {
            let origin =
                Origin::Guest { pc: rip, user: cpu.derived.mode == Mode::User, memory: cpu.memory() };
            watcher.made(&Made { address: self.address(entry), code: often, origin });
            watcher.made(&Made { address: self.address(at), code: seldom, origin });
        }
        self.asm.code = code;
    }
}
