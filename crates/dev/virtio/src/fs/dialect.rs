//! How a guest asks for files: FUSE or 9P. Both have messages that begin with their length and carry a number by which
//! a reply finds its request.

use satori_defs::virtio::{fs::*, kind, plan9};

pub(super) use satori_defs::virtio::fs::TAG;

/// The two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// FUSE, on a virtio file system.
    #[default]
    Fuse,
    /// 9P, on a 9P transport.
    Plan9,
}

/// What a device does with a request.
pub(super) enum Sort {
    /// It waits for a reply.
    Question,
    /// It is passed on, and has no reply.
    Notice,
    /// It is not passed on.
    Ignored,
}

/// Queues of a file system: one for what must overtake others, one for requests; and the one of 9P.
const HIPRIO: u16 = 128;
const REQUESTS: u16 = 1024;
const MESSAGES: u16 = 128;

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// What a message says of its length.
pub(super) fn length(message: &[u8]) -> usize {
    word(message, 0) as usize
}

impl Dialect {
    pub(super) fn kind(self) -> u16 {
        match self {
            Dialect::Fuse => kind::FS,
            Dialect::Plan9 => kind::PLAN9,
        }
    }

    pub(super) fn features(self) -> u64 {
        match self {
            Dialect::Fuse => 0,
            Dialect::Plan9 => plan9::MOUNT_TAG,
        }
    }

    pub(super) fn queues(self) -> Vec<u16> {
        match self {
            Dialect::Fuse => vec![HIPRIO, REQUESTS],
            Dialect::Plan9 => vec![MESSAGES],
        }
    }

    pub(super) fn config(self, tag: &str) -> Vec<u8> {
        match self {
            Dialect::Fuse => {
                let mut config = tag.to_owned().into_bytes();
                config.resize(TAG, 0);
                config.extend(1_u32.to_le_bytes());
                config
            }
            Dialect::Plan9 => [&(tag.len() as u16).to_le_bytes(), tag.as_bytes()].concat(),
        }
    }

    /// Bytes of the shortest request.
    pub(super) fn request_header(self) -> usize {
        match self {
            Dialect::Fuse => IN_HEADER,
            Dialect::Plan9 => plan9::HEADER,
        }
    }

    /// Bytes of the shortest reply.
    pub(super) fn reply_header(self) -> usize {
        match self {
            Dialect::Fuse => OUT_HEADER,
            Dialect::Plan9 => plan9::HEADER,
        }
    }

    pub(super) fn sort(self, request: &[u8]) -> Sort {
        match (self, word(request, 4)) {
            (Dialect::Fuse, FORGET | BATCH_FORGET) => Sort::Notice,
            // Numbers are ours to give, so nobody could say which request is meant; Linux never asks.
            (Dialect::Fuse, INTERRUPT) => Sort::Ignored,
            // A 9P server answers in order, so that what is to be flushed was answered before.
            _ => Sort::Question,
        }
    }

    /// A message's number; of one that is too short 0.
    pub(super) fn number(self, message: &[u8]) -> u64 {
        match self {
            Dialect::Fuse => u64::from(word(message, 8)) | u64::from(word(message, 12)) << 32,
            Dialect::Plan9 => {
                let tag = message.get(plan9::MESSAGE_TAG..plan9::HEADER);
                tag.map_or(0, |tag| u16::from_le_bytes([tag[0], tag[1]]).into())
            }
        }
    }

    /// Numbers a message that has its header.
    pub(super) fn set_number(self, message: &mut [u8], number: u64) {
        match self {
            Dialect::Fuse => message[8..16].copy_from_slice(&number.to_le_bytes()),
            Dialect::Plan9 => {
                message[plan9::MESSAGE_TAG..plan9::HEADER].copy_from_slice(&(number as u16).to_le_bytes());
            }
        }
    }

    /// The number after this one.
    pub(super) fn after(self, number: u64) -> u64 {
        match self {
            Dialect::Fuse => number.wrapping_add(1),
            Dialect::Plan9 => (number + 1) & u64::from(u16::MAX),
        }
    }

    /// A reply that tells an error (linux/errno.h).
    pub(super) fn failure(self, errno: i32, number: u64) -> Vec<u8> {
        let mut reply = match self {
            Dialect::Fuse => [OUT_HEADER as i32, -errno, 0, 0].map(i32::to_le_bytes).concat(),
            Dialect::Plan9 => {
                let length = plan9::HEADER as u32 + 4;
                [&length.to_le_bytes()[..], &[plan9::RLERROR, 0, 0], &errno.to_le_bytes()].concat()
            }
        };
        self.set_number(&mut reply, number);
        reply
    }
}
