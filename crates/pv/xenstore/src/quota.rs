//! What one guest may have, as Xen's own store has it by default.

/// Nodes.
pub const NODES: usize = 1000;
/// Watches.
pub const WATCHES: usize = 128;
/// Transactions at a time.
pub const TRANSACTIONS: usize = 10;
/// Nodes that one transaction may touch.
pub const TOUCHED: usize = 1024;
/// Bytes of a value.
pub const VALUE: usize = 2048;
/// Permissions of a node.
pub const PERMISSIONS: usize = 5;
/// Bytes of watches' events that wait for the guest; what comes beyond is lost to it.
pub const EVENTS: usize = 256 << 10;
