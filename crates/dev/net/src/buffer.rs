//! Bytes that go in at the end and out at the beginning, and lie in one piece.

/// The queue.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    begin: usize,
}

impl Buffer {
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.begin
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.begin..]
    }

    /// Takes `count` bytes away at the beginning.
    pub(crate) fn pass(&mut self, count: usize) {
        self.begin += count.min(self.len());
        if self.is_empty() {
            self.bytes.clear();
            self.begin = 0;
        } else if self.begin > self.bytes.len() / 2 {
            // Moved are fewer bytes than have passed.
            self.bytes.drain(..std::mem::take(&mut self.begin));
        }
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Room for `count` bytes, which `fill` says how many it filled of.
    pub(crate) fn fill<E>(
        &mut self,
        count: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let have = self.bytes.len();
        self.bytes.resize(have + count, 0);
        let result = fill(&mut self.bytes[have..]);
        self.bytes.truncate(have + *result.as_ref().unwrap_or(&0));
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_keep_their_order() {
        let mut buffer = Buffer::default();
        buffer.put(b"abcdef");
        buffer.pass(2);
        buffer
            .fill(4, |room| -> Result<usize, ()> {
                room[..2].copy_from_slice(b"gh");
                Ok(2)
            })
            .unwrap();
        buffer.fill(4, |_| Err(())).unwrap_err();
        assert_eq!(buffer.bytes(), b"cdefgh");
        buffer.pass(5);
        assert_eq!(buffer.bytes(), b"h");
        buffer.pass(9);
        assert!(buffer.is_empty());
    }
}
