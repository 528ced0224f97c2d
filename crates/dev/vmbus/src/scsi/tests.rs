use std::fs::File;

use satori_host::io_thread::IoThread;
use satori_image::{Access, Format, Source};

use super::*;

/// A unit of 64 KiB.
fn unit(name: &str, access: Access) -> Lun {
    let path = std::env::temp_dir().join(format!("satori-scsi-{name}-{}", std::process::id()));
    std::fs::write(&path, vec![7; 64 << 10]).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let source = Source { name: name.into(), file, format: Format::Raw, access, here: None, backing: None };
    Lun { requests: Requests::new(Image::open(source).unwrap(), IoThread::default()), serial: "s1".into() }
}

fn cdb(bytes: &[u8]) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[..bytes.len()].copy_from_slice(bytes);
    cdb
}

fn answer(lun: Option<&Lun>, bytes: &[u8]) -> Vec<u8> {
    match parse(lun, &[0, 1], &cdb(bytes)) {
        Ok(Command::Answer(bytes)) => bytes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_unit_tells_what_it_is_and_an_absent_one_that_it_is_none() {
    let lun = unit("tells", Access::Write);
    let inquiry = answer(Some(&lun), &[0x12, 0, 0, 0, 36]);
    assert_eq!((inquiry[0], inquiry.len(), &inquiry[8..14]), (0, 36, &b"SATORI"[..]));
    assert_eq!(answer(None, &[0x12, 0, 0, 0, 36])[0], 0x7f);
    assert_eq!(answer(Some(&lun), &[0x12, 1, 0x80, 0, 255]), [0, 0x80, 0, 2, b's', b'1']);
    assert_eq!(answer(Some(&lun), &[0x12, 1, 0xb0, 0, 255]).len(), 64);
    assert_eq!(answer(Some(&lun), &[0x25]), [0, 0, 0, 127, 0, 0, 2, 0]);
    assert_eq!(answer(Some(&lun), &[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32])[..12][7], 127);
    assert_eq!(answer(None, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0]).len(), 24);
    assert_eq!(parse(None, &[], &cdb(&[0])), Err(NO_UNIT));
    assert_eq!(parse(Some(&lun), &[], &cdb(&[0xff])), Err(UNKNOWN));
}

#[test]
fn nothing_is_beyond_the_end_and_nothing_written_that_is_read_only() {
    let (lun, fixed) = (unit("write", Access::Write), unit("fixed", Access::ReadOnly));
    let disk = |lun, bytes: &[u8]| match parse(Some(lun), &[0], &cdb(bytes)) {
        Ok(Command::Disk(wish)) => Ok(wish),
        Err(sense) => Err(sense),
        other => panic!("{other:?}"),
    };
    assert_eq!(disk(&lun, &[0x28, 0, 0, 0, 0, 127, 0, 0, 1]), Ok(Wish::Read { at: 127 * 512, len: 512 }));
    assert_eq!(disk(&lun, &[0x28, 0, 0, 0, 0, 127, 0, 0, 2]), Err(BEYOND));
    assert_eq!(disk(&lun, &[0x88, 0, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 1]), Err(BEYOND));
    assert_eq!(
        disk(&lun, &[0x2a, 8, 0, 0, 0, 1, 0, 0, 1]),
        Ok(Wish::Write { at: 512, len: 512, through: true })
    );
    assert_eq!(disk(&fixed, &[0x2a, 0, 0, 0, 0, 1, 0, 0, 1]), Err(PROTECTED));
    assert_eq!(disk(&fixed, &[0x42]), Err(PROTECTED));
    // Data that is shorter than what is to be written.
    let wish = disk(&lun, &[0x2a, 0, 0, 0, 0, 1, 0, 0, 1]).unwrap();
    assert_eq!(wish.request(lun.image(), vec![0; 511]).err(), Some(BAD_FIELD));
}

#[test]
fn lists_of_ranges_are_checked() {
    let lun = unit("ranges", Access::Write);
    let list = |bytes: u16, block: u64, blocks: u32| {
        let mut list = vec![0, 0];
        list.extend(bytes.to_be_bytes());
        list.extend([0; 4]);
        list.extend(block.to_be_bytes());
        list.extend(blocks.to_be_bytes());
        list.extend([0; 4]);
        ranges(lun.image(), &list)
    };
    assert_eq!(list(16, 8, 16), Ok(vec![(4096, 8192)]));
    assert_eq!(list(16, 127, 2), Err(BEYOND));
    assert_eq!(list(16, u64::MAX, 1), Err(BEYOND));
    assert_eq!(list(17, 8, 16), Err(BAD_LIST));
    assert_eq!(ranges(lun.image(), &[]), Err(BAD_LIST));
}
