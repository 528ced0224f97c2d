//! Little-endian fields at offsets of byte arrays, and bounds-checked reads from files.

use crate::BadKernel;

/// Stores `value` at `at`, little-endian. The caller's array holds the field.
pub(crate) fn put<const N: usize>(to: &mut [u8], at: usize, value: [u8; N]) {
    to[at..at + N].copy_from_slice(&value);
}

/// `data[start..start + len]`, or that the file is truncated at `what`.
pub(crate) fn slice<'a>(
    data: &'a [u8],
    what: &'static str,
    start: u64,
    len: u64,
) -> Result<&'a [u8], BadKernel> {
    let end = start.saturating_add(len);
    let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
    range.and_then(|(start, end)| data.get(start..end)).ok_or(BadKernel::Truncated {
        what,
        start,
        end,
        len: data.len() as u64,
    })
}

/// The `N` bytes at `at`.
pub(crate) fn field<const N: usize>(
    data: &[u8],
    what: &'static str,
    at: usize,
) -> Result<[u8; N], BadKernel> {
    let mut bytes = [0; N];
    bytes.copy_from_slice(slice(data, what, at as u64, N as u64)?);
    Ok(bytes)
}
