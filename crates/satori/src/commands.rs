//! What `satori` can be told to do, a file a command. What several of them share stands beside this folder.

pub mod bench;
pub mod costs;
pub mod cpu;
pub mod demo;
pub mod doctor;
pub mod engines;
pub mod explain;
pub mod fetch;
pub mod hyperv;
pub mod initrd;
pub mod kvm;
pub mod msrs;
pub mod offers;
pub mod pages;
pub mod reports;
pub mod run;
pub mod test;
pub mod top;
pub mod xen;
