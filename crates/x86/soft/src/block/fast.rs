//! Specialised operations for the instructions that programs execute most, in 64-bit code.
//!
//! Each agrees with the generic implementation of its instruction; [`select()`] only decides
//! which one runs.

#[cfg(test)]
mod agree_tests;
mod alu;
mod branch;
mod fused;
mod moves;
mod parts;
mod select;
mod unary;

pub(super) use select::{fuse, select};
