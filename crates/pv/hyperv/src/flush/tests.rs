use satori_defs::hyperv::call;

use super::*;
use crate::hypercall::Input;
use crate::msr::tests::partition_of;

const LIST: u64 = call::FLUSH_VIRTUAL_ADDRESS_LIST as u64;
const SPACE: u64 = call::FLUSH_VIRTUAL_ADDRESS_SPACE as u64;

/// What each of three processors has to drop after processor 0 asked.
fn ask(words: &str, code: u64, header: &[u64], elements: &[u64], sparse: bool) -> (Completion, Vec<Flush>) {
    let (partition, ..) = partition_of(words, 3);
    let input = Input(code | (elements.len() as u64) << 32);
    let request = Request { input, header, elements };
    let run = if sparse { super::sparse } else { masked };
    let completion = run(&partition, &mut Vp::new(0), &request);
    let taken = (0..3).map(|index| partition.slots.enter(index).take()).collect();
    (completion, taken)
}

#[test]
fn masks_and_flags_choose_processors_and_what_they_drop() {
    let space = |flags: u64, mask: u64| ask("tlbflush", SPACE, &[0, flags, mask], &[], false).1;
    assert_eq!(space(0, 0b101), [Flush::All, Flush::Nothing, Flush::All]);
    assert_eq!(
        space(flags::NON_GLOBAL_MAPPINGS_ONLY, 0b10),
        [Flush::Nothing, Flush::NonGlobal, Flush::Nothing]
    );
    assert_eq!(space(flags::ALL_PROCESSORS, 0b10), [Flush::All, Flush::All, Flush::All]);
    assert_eq!(space(0, 0), [Flush::All, Flush::All, Flush::All], "Windows Server 2012");
    assert_eq!(space(0, 1 << 63), [Flush::Nothing, Flush::Nothing, Flush::Nothing], "does not exist");
    let ex = |format: u64, valid: u64, banks: &[u64]| {
        let header: Vec<u64> = [0, 0, format, valid].into_iter().chain(banks.iter().copied()).collect();
        ask("tlbflush", SPACE, &header, &[], true)
    };
    assert_eq!(ex(0, 1, &[0b100]).1, [Flush::Nothing, Flush::Nothing, Flush::All]);
    assert_eq!(ex(0, 0, &[]).1, [Flush::Nothing, Flush::Nothing, Flush::Nothing], "an empty set is none");
    assert_eq!(ex(1, 0, &[]).1, [Flush::All, Flush::All, Flush::All]);
    assert_eq!(ex(0, 1, &[]).0.status, Status::InvalidHypercallInput);
    assert_eq!(ex(3, 1, &[1]).0.status, Status::InvalidParameter);
}

#[test]
fn flags_that_are_not_defined_are_refused_and_nothing_is_dropped() {
    for bit in 3..64 {
        let (done, dropped) = ask("tlbflush", SPACE, &[0, 1 << bit, 1], &[], false);
        assert_eq!((done.status, &dropped[0]), (Status::InvalidParameter, &Flush::Nothing), "bit {bit}");
    }
    let extended = flags::USE_EXTENDED_RANGE_FORMAT;
    let (done, _) = ask("tlbflush-ext", SPACE, &[0, extended, 1], &[], false);
    assert_eq!(done.status, Status::Success);
}

#[test]
fn ranges_count_additional_pages_and_many_are_all() {
    let list = |flags: u64, ranges: &[u64]| ask("tlbflush-ext", LIST, &[0, flags, 1], ranges, false);
    let (done, dropped) = list(0, &[0x7000_0002, 0xffff_8000_0000_0000]);
    assert_eq!(done.done, 2);
    let pages = vec![0x7000_0000, 0x7000_1000, 0x7000_2000, 0xffff_8000_0000_0000];
    assert_eq!(dropped[0], Flush::Pages(pages));
    assert_eq!(list(0, &[0x1000 | PAGES_MAX as u64]).1[0], Flush::All);
    assert_eq!(list(0, &[0xfff]).1[0], Flush::All);
    let top = list(0, &[!0xfff | 1]).1;
    assert_eq!(top[0], Flush::Pages(vec![0, !0xfff]), "a range that wraps is no trap");
    let extended = flags::USE_EXTENDED_RANGE_FORMAT;
    assert_eq!(list(extended, &[0x20_0001]).1[0], Flush::Pages(vec![0x20_0000, 0x20_1000]));
    assert_eq!(list(extended, &[0x20_0000 | gva_range::LARGE_PAGE]).1[0], Flush::All);
}

#[test]
fn two_requests_become_one_that_covers_both() {
    let pages = |range: std::ops::Range<u64>| Flush::Pages(range.map(|page| page << 12).collect());
    assert_eq!(Flush::Nothing.and(&pages(0..1)), pages(0..1));
    assert_eq!(pages(0..1).and(&pages(1..3)), pages(0..3));
    assert_eq!(pages(0..1).and(&Flush::Nothing), pages(0..1));
    assert_eq!(Flush::NonGlobal.and(&Flush::NonGlobal), Flush::NonGlobal);
    assert_eq!(Flush::All.and(&Flush::NonGlobal), Flush::All);
    assert_eq!(pages(0..1).and(&Flush::All), Flush::All);
    // A page may be global, which a flush of the others leaves.
    let both = Flush::NonGlobalAnd(vec![0x5000]);
    assert_eq!(Flush::NonGlobal.and(&pages(5..6)), both);
    assert_eq!(pages(5..6).and(&Flush::NonGlobal), both);
    assert_eq!(both.clone().and(&Flush::NonGlobal), both);
    assert_eq!(both.and(&pages(1..2)).distinct(), Flush::NonGlobalAnd(vec![0x1000, 0x5000]));
}

#[test]
fn a_sleeper_s_list_names_each_page_once_and_does_not_grow() {
    let pages = |range: std::ops::Range<u64>| Flush::Pages(range.map(|page| page << 12).collect());
    let mut flush = Flush::Nothing;
    for _ in 0..10 * PAGES_MAX {
        flush = flush.and(&pages(0..8));
        assert!(flush.fits());
    }
    assert_eq!(flush.distinct(), pages(0..8));
    let most = PAGES_MAX as u64;
    assert_eq!(pages(0..most).and(&pages(most..most + 1)), Flush::All);
    assert_eq!(pages(0..most / 2).and(&pages(0..most)), Flush::All, "a request is not looked through");
}
