//! The table of calls, and what a call is given and gives back.

use satori_defs::hyperv::{Status, call};

use super::Input;
use crate::{Outcome, Partition, Vp, extended, flush, ipi, spin, synic};

/// A call with its parameters, wherever they came from.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The input word.
    pub input: Input,
    /// The fixed header, then the variable one, in units of 8 bytes.
    pub header: &'a [u64],
    /// The elements to do now, each in units of 8 bytes: those from the rep start index on, or
    /// the first of them. None if the call is not a rep call.
    pub elements: &'a [u64],
}

/// What a call gives back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The status.
    pub status: Status,
    /// Elements done of those that were given.
    pub done: u16,
    /// Output, as long as the call's row says; it is written if the call succeeds.
    pub output: Vec<u64>,
    /// What the machine has to do.
    pub outcome: Outcome,
}

impl Completion {
    /// A call that ended with `status` and did no reps.
    pub const fn status(status: Status) -> Self {
        Completion { status, done: 0, output: Vec::new(), outcome: Outcome::Done }
    }
    /// A call that succeeded and asks for `outcome`.
    pub const fn outcome(outcome: Outcome) -> Self {
        Completion { status: Status::Success, done: 0, output: Vec::new(), outcome }
    }
}

/// One row of the table of calls. Sizes are in units of 8 bytes, to which all is padded.
pub struct CallRow {
    /// The call code.
    pub code: u16,
    /// The name in the TLFS.
    pub name: &'static str,
    /// The fixed input header.
    pub input: usize,
    /// Whether a variable header is allowed.
    pub header: bool,
    /// One element of the input list of a rep call; 0 for the others, which must have no reps.
    pub element: usize,
    /// The output.
    pub output: usize,
    /// Whether the parameters may be in registers.
    pub fast: bool,
    /// Does it.
    pub run: fn(&Partition, &mut Vp, &Request<'_>) -> Completion,
}

const ROW: CallRow = CallRow {
    code: 0,
    name: "",
    input: 0,
    header: false,
    element: 0,
    output: 0,
    fast: true,
    run: |_, _, _| Completion::status(Status::InvalidHypercallCode),
};

/// The calls that exist. Who adds one also names it in its enlightenment's row.
pub(crate) const CALLS: &[CallRow] = &[
    CallRow {
        code: call::FLUSH_VIRTUAL_ADDRESS_SPACE,
        name: "HvCallFlushVirtualAddressSpace",
        input: 3,
        run: flush::masked,
        ..ROW
    },
    CallRow {
        code: call::FLUSH_VIRTUAL_ADDRESS_LIST,
        name: "HvCallFlushVirtualAddressList",
        input: 3,
        element: 1,
        run: flush::masked,
        ..ROW
    },
    CallRow {
        code: call::NOTIFY_LONG_SPIN_WAIT,
        name: "HvCallNotifyLongSpinWait",
        input: 1,
        run: spin::notify,
        ..ROW
    },
    CallRow {
        code: call::SEND_SYNTHETIC_CLUSTER_IPI,
        name: "HvCallSendSyntheticClusterIpi",
        input: 2,
        run: ipi::send,
        ..ROW
    },
    CallRow {
        code: call::FLUSH_VIRTUAL_ADDRESS_SPACE_EX,
        name: "HvCallFlushVirtualAddressSpaceEx",
        input: 4,
        header: true,
        run: flush::sparse,
        ..ROW
    },
    CallRow {
        code: call::FLUSH_VIRTUAL_ADDRESS_LIST_EX,
        name: "HvCallFlushVirtualAddressListEx",
        input: 4,
        header: true,
        element: 1,
        run: flush::sparse,
        ..ROW
    },
    CallRow {
        code: call::SEND_SYNTHETIC_CLUSTER_IPI_EX,
        name: "HvCallSendSyntheticClusterIpiEx",
        input: 3,
        header: true,
        run: ipi::send_ex,
        ..ROW
    },
    CallRow {
        code: call::POST_MESSAGE,
        name: "HvCallPostMessage",
        input: synic::POST_WORDS,
        // It does not fit into registers.
        fast: false,
        run: synic::post_message,
        ..ROW
    },
    CallRow {
        code: call::SIGNAL_EVENT,
        name: "HvCallSignalEvent",
        input: 1,
        run: synic::signal_event,
        ..ROW
    },
    CallRow {
        code: call::FLUSH_GUEST_PHYSICAL_ADDRESS_SPACE,
        name: "HvCallFlushGuestPhysicalAddressSpace",
        input: 2,
        run: flush::guest_physical,
        ..ROW
    },
    CallRow {
        code: call::FLUSH_GUEST_PHYSICAL_ADDRESS_LIST,
        name: "HvCallFlushGuestPhysicalAddressList",
        input: 2,
        element: 1,
        run: flush::guest_physical,
        ..ROW
    },
    CallRow {
        code: call::EXT_QUERY_CAPABILITIES,
        name: "HvExtCallQueryCapabilities",
        output: 1,
        run: extended::query_capabilities,
        ..ROW
    },
];

/// The calls of a nested guest that are served for its hypervisor (TLFS, "Direct Virtual Flush").
pub(crate) const NESTED_CALLS: &[CallRow] = &[
    CallRow { code: call::FLUSH_VIRTUAL_ADDRESS_SPACE, input: 3, run: flush::nested, ..ROW },
    CallRow { code: call::FLUSH_VIRTUAL_ADDRESS_LIST, input: 3, element: 1, run: flush::nested, ..ROW },
    CallRow {
        code: call::FLUSH_VIRTUAL_ADDRESS_SPACE_EX,
        input: 4,
        header: true,
        run: flush::nested_ex,
        ..ROW
    },
    CallRow {
        code: call::FLUSH_VIRTUAL_ADDRESS_LIST_EX,
        input: 4,
        header: true,
        element: 1,
        run: flush::nested_ex,
        ..ROW
    },
];

/// The name of call `code` in the TLFS, if it exists here.
pub fn call_name(code: u16) -> Option<&'static str> {
    CALLS.iter().find(|row| row.code == code).map(|row| row.name)
}
