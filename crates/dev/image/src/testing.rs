//! For tests, of other crates too: empty qcow2 images, and whether one is whole. Written from the format's description alone, so
//! that it does not share the library's mistakes.

use std::collections::BTreeMap;

/// Clusters that an empty image uses: header, refcount table, refcount block and the L1 table.
const USED: u64 = 3;
const REFCOUNT_TABLE: u64 = 1;
const REFCOUNT_BLOCK: u64 = 2;
/// Header extension: the format of what the image is based on.
const BACKING_FORMAT: u32 = 0xe279_2aca;
const HEADER: usize = 104;
/// Of an entry of an L1 or L2 table: the cluster's place, no other reference, compressed.
const PLACE: u64 = 0x00ff_ffff_ffff_fe00;
const COPIED: u64 = 1 << 63;
const COMPRESSED: u64 = 1 << 62;

/// An image of version 3 whose disk has `bytes` zeroes, or those of what it is based on: its name and format.
pub fn qcow2(bytes: u64, cluster_bits: u32, backing: Option<(&str, &str)>) -> Vec<u8> {
    let cluster = 1u64 << cluster_bits;
    let tables = bytes.div_ceil(cluster * (cluster / 8));
    let l1_clusters = (tables * 8).div_ceil(cluster);
    let mut image = vec![0; ((USED + l1_clusters) * cluster) as usize];
    let mut put = |at: usize, data: &[u8]| image[at..at + data.len()].copy_from_slice(data);
    put(0, b"QFI\xfb");
    put(4, &3u32.to_be_bytes());
    put(20, &cluster_bits.to_be_bytes());
    put(24, &bytes.to_be_bytes());
    put(36, &(tables as u32).to_be_bytes());
    put(40, &(USED * cluster).to_be_bytes());
    put(48, &(REFCOUNT_TABLE * cluster).to_be_bytes());
    put(56, &1u32.to_be_bytes());
    // Refcounts of 16 bits.
    put(96, &4u32.to_be_bytes());
    put(100, &(HEADER as u32).to_be_bytes());
    if let Some((name, format)) = backing {
        put(HEADER, &BACKING_FORMAT.to_be_bytes());
        put(HEADER + 4, &(format.len() as u32).to_be_bytes());
        put(HEADER + 8, format.as_bytes());
        let name_at = HEADER + 8 + format.len().next_multiple_of(8) + 8;
        put(8, &(name_at as u64).to_be_bytes());
        put(16, &(name.len() as u32).to_be_bytes());
        put(name_at, name.as_bytes());
    }
    put((REFCOUNT_TABLE * cluster) as usize, &(REFCOUNT_BLOCK * cluster).to_be_bytes());
    for used in 0..USED + l1_clusters {
        put((REFCOUNT_BLOCK * cluster + 2 * used) as usize, &1u16.to_be_bytes());
    }
    image
}

/// What is wrong with an image of version 3 with refcounts of 16 bits: references to clusters that count as free, or as
/// used by fewer than there are. Clusters that nobody uses are lost room and no fault.
pub fn faults(image: &[u8]) -> Vec<String> {
    let number = |at: u64, len: usize| -> u64 {
        let bytes = image.get(at as usize..).unwrap_or_default();
        let byte = |index| u64::from(bytes.get(index).copied().unwrap_or_default());
        (0..len).fold(0, |sum, index| sum << 8 | byte(index))
    };
    let cluster = 1u64 << number(20, 4);
    let mut uses: BTreeMap<u64, (u64, String)> = BTreeMap::new();
    let mut wrong = Vec::new();
    let mut used = |at: u64, copied: bool, what: String| {
        if !at.is_multiple_of(cluster) {
            wrong.push(format!("{what} is at {at:#x}, within a cluster"));
        }
        if !copied {
            wrong.push(format!("{what} at {at:#x} is not marked as used once"));
        }
        uses.entry(at / cluster).or_insert((0, what)).0 += 1;
    };
    let (l1, tables) = (number(40, 8), number(36, 4));
    let (counts, counts_clusters) = (number(48, 8), number(56, 4));
    used(0, true, "the header".into());
    (0..(tables * 8).div_ceil(cluster)).for_each(|n| used(l1 + n * cluster, true, "the L1 table".into()));
    (0..counts_clusters).for_each(|n| used(counts + n * cluster, true, "the refcount table".into()));
    let blocks: Vec<_> = (0..counts_clusters * cluster / 8).map(|n| number(counts + 8 * n, 8)).collect();
    blocks.iter().filter(|block| **block != 0).for_each(|at| used(*at, true, "a refcount block".into()));
    for table in 0..tables {
        let entry = number(l1 + 8 * table, 8);
        let l2 = entry & PLACE;
        if l2 == 0 {
            continue;
        }
        used(l2, entry & COPIED != 0, format!("L2 table {table}"));
        for index in 0..cluster / 8 {
            let entry = number(l2 + 8 * index, 8);
            let at = entry & PLACE;
            if entry & COMPRESSED == 0 && at != 0 {
                used(at, entry & COPIED != 0, format!("cluster {index} of L2 table {table}"));
            }
        }
    }
    let per_block = cluster / 2;
    for (at, (count, what)) in uses {
        let block = blocks.get((at / per_block) as usize).copied().unwrap_or_default();
        let stored = if block == 0 { 0 } else { number(block + 2 * (at % per_block), 2) };
        if stored != count {
            wrong.push(format!("{what} at {:#x} has {count} users and counts {stored}", at * cluster));
        }
    }
    wrong
}
