//! The debug console's sink, shared by the lives of a machine.

use std::sync::{Arc, Mutex};

use satori_bus::ByteSink;

use crate::shared::lock;

#[derive(Clone)]
pub(crate) struct DebugSink(Arc<Mutex<Box<dyn ByteSink>>>);

impl DebugSink {
    pub(crate) fn new(sink: Box<dyn ByteSink>) -> Self {
        DebugSink(Arc::new(Mutex::new(sink)))
    }
}

impl ByteSink for DebugSink {
    fn put(&mut self, bytes: &[u8]) {
        lock(&self.0).put(bytes);
    }
}
