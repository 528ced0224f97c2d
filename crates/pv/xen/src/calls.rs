//! The one table of hypercalls.

use satori_defs::xen::call;

use crate::hypercall::{Caller, Served};
use crate::{Domain, Vcpu};

/// A hypercall: its number, its names, and who serves it.
pub struct CallRow {
    /// The number in RAX.
    pub number: u64,
    /// The name.
    pub name: &'static str,
    /// Its commands, the first argument: those that are counted by themselves.
    pub commands: &'static [(u64, &'static str)],
    /// Serves it.
    pub(crate) run: fn(&Domain, &mut Vcpu, &Caller<'_>, [u64; 5]) -> Served,
}

/// Every hypercall that there is.
pub const CALLS: &[CallRow] = &[
    CallRow {
        number: call::MEMORY,
        name: "memory_op",
        commands: &[
            (1, "decrease_reservation"),
            (3, "current_reservation"),
            (4, "maximum_reservation"),
            (6, "populate_physmap"),
            (7, "add_to_physmap"),
            (9, "memory_map"),
            (14, "maximum_gpfn"),
            (15, "remove_from_physmap"),
            (23, "add_to_physmap_batch"),
        ],
        run: Domain::memory_op,
    },
    CallRow { number: call::MULTICALL, name: "multicall", commands: &[], run: Domain::multicall },
    CallRow { number: call::SET_TIMER, name: "set_timer_op", commands: &[], run: Domain::set_timer_op },
    CallRow {
        number: call::XEN_VERSION,
        name: "xen_version",
        commands: &[
            (0, "version"),
            (1, "extraversion"),
            (2, "compile_info"),
            (3, "capabilities"),
            (4, "changeset"),
            (5, "platform_parameters"),
            (6, "get_features"),
            (7, "pagesize"),
            (8, "guest_handle"),
        ],
        run: Domain::xen_version,
    },
    CallRow {
        number: call::CONSOLE_IO,
        name: "console_io",
        commands: &[(0, "write"), (1, "read")],
        run: Domain::console_io,
    },
    CallRow {
        number: call::GRANT_TABLE,
        name: "grant_table_op",
        commands: &[
            (0, "map_grant_ref"),
            (1, "unmap_grant_ref"),
            (2, "setup_table"),
            (5, "copy"),
            (6, "query_size"),
            (7, "unmap_and_replace"),
            (8, "set_version"),
            (9, "get_status_frames"),
            (10, "get_version"),
            (11, "swap_grant_ref"),
        ],
        run: Domain::grant_table_op,
    },
    CallRow { number: call::VM_ASSIST, name: "vm_assist", commands: &[], run: Domain::vm_assist },
    CallRow {
        number: call::VCPU,
        name: "vcpu_op",
        commands: &[
            (3, "is_up"),
            (4, "get_runstate_info"),
            (5, "register_runstate_memory_area"),
            (6, "set_periodic_timer"),
            (7, "stop_periodic_timer"),
            (8, "set_singleshot_timer"),
            (9, "stop_singleshot_timer"),
            (10, "register_vcpu_info"),
            (11, "send_nmi"),
            (13, "register_vcpu_time_memory_area"),
        ],
        run: Domain::vcpu_op,
    },
    CallRow {
        number: call::SCHED,
        name: "sched_op",
        commands: &[(0, "yield"), (1, "block"), (2, "shutdown"), (3, "poll")],
        run: Domain::sched_op,
    },
    CallRow {
        number: call::EVENT_CHANNEL,
        name: "event_channel_op",
        commands: &[
            (0, "bind_interdomain"),
            (1, "bind_virq"),
            (3, "close"),
            (4, "send"),
            (5, "status"),
            (6, "alloc_unbound"),
            (7, "bind_ipi"),
            (8, "bind_vcpu"),
            (9, "unmask"),
            (10, "reset"),
            (11, "init_control"),
            (12, "expand_array"),
            (13, "set_priority"),
        ],
        run: Domain::event_channel_op,
    },
    CallRow {
        number: call::HVM,
        name: "hvm_op",
        commands: &[(0, "set_param"), (1, "get_param"), (23, "set_evtchn_upcall_vector")],
        run: Domain::hvm_op,
    },
];
