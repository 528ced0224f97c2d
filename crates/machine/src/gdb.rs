//! The gdb stub: a debugger over a socket, one after the other, beside the running machine.
//!
//! One thread reads the socket, another speaks the protocol (the gdbstub crate's state machine).
//! When a debugger connects, all vCPUs stop; when it detaches or its connection ends, its
//! breakpoints are gone and they go on.

mod listen;
pub(crate) mod map;
mod monitor;
mod registers;
mod target;
mod x86;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::JoinHandle;

use gdbstub::common::Signal;
use gdbstub::conn::Connection;
use gdbstub::stub::state_machine::GdbStubStateMachine;
use gdbstub::stub::{DisconnectReason, GdbStub, MultiThreadStopReason};
use satori_seam::DebugPlan;

use crate::Event;
use crate::control::Control;
pub use listen::GdbListener;
use listen::Stream;
pub(crate) use target::{Change, Debugged, Target, tid};

/// A stub that is to serve a machine.
pub(crate) struct Plan {
    pub listener: GdbListener,
    /// The vCPUs wait for a debugger that lets them go.
    pub wait: bool,
    /// Whether the engine can stop at all that is asked for.
    pub possible: Possible,
}

/// Tells whether an engine can stop at all of a plan.
pub(crate) type Possible = Box<dyn Fn(&DebugPlan) -> bool + Send>;

/// What the protocol's thread hears.
#[derive(Debug)]
enum Input {
    Connected(Arc<Stream>),
    Bytes(Vec<u8>),
    Closed,
    /// A vCPU has met something.
    Stopped,
    /// The machine has ended, with what counts as its exit status.
    Ended(u8),
}

/// A stub that serves a running machine.
pub(crate) struct Server {
    to: Sender<Input>,
    thread: JoinHandle<()>,
}

impl Server {
    /// Starts to serve.
    pub(crate) fn start<V: Debugged>(plan: Plan, control: &Arc<Control<V>>) -> std::io::Result<Self> {
        let (to, inputs) = channel();
        let bell = to.clone();
        let notify = Box::new(move || drop(bell.send(Input::Stopped)));
        control.debugged(plan.wait, notify);
        let listener = Arc::new(plan.listener);
        let (credit, spent) = sync_channel(listen::AHEAD);
        let (accepting, readers_end) = (listener.clone(), to.clone());
        let reader = std::thread::Builder::new()
            .name("gdb socket".into())
            .spawn(move || accepting.serve(&readers_end, &credit))?;
        let target = Target::new(control.clone(), plan.possible);
        let thread = std::thread::Builder::new().name("gdb".into()).spawn(move || {
            Session { inputs, spent, bytes: VecDeque::new(), target }.serve();
            listener.close();
            let _ = reader.join();
        })?;
        Ok(Server { to, thread })
    }

    /// Tells a debugger that the machine has ended, and ends.
    pub(crate) fn end(self, event: &Event) {
        let status = match event {
            Event::PowerOff => 0,
            Event::DebugExit(value) => ((value << 1) | 1) as u8,
            _ => 1,
        };
        let _ = self.to.send(Input::Ended(status));
        let _ = self.thread.join();
    }
}

/// A debugger's end of a connection. Closed at its end, so that the reader hears it.
struct Wire(Arc<Stream>, Vec<u8>);

impl Connection for Wire {
    type Error = std::io::Error;

    fn write(&mut self, byte: u8) -> Result<(), Self::Error> {
        self.1.push(byte);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Self::Error> {
        let bytes = std::mem::take(&mut self.1);
        self.0.write_all(&bytes)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let _ = self.flush();
        self.0.close();
    }
}

/// Waits for what happens next. Nothing if nobody is left to tell.
fn next(inputs: &Receiver<Input>, spent: &Receiver<()>) -> Option<Input> {
    let input = inputs.recv().ok()?;
    if matches!(input, Input::Bytes(_)) {
        let _ = spent.try_recv();
    }
    Some(input)
}

/// How a debugger left.
enum Left {
    Connection,
    Machine,
}

struct Session<V: Debugged> {
    inputs: Receiver<Input>,
    /// One for each `Input::Bytes` that was sent.
    spent: Receiver<()>,
    bytes: VecDeque<u8>,
    target: Target<V>,
}

impl<V: Debugged> Session<V> {
    /// Serves debuggers until the machine ends.
    fn serve(mut self) {
        while let Some(input) = next(&self.inputs, &self.spent) {
            match input {
                Input::Connected(stream) => match self.debug(stream) {
                    Left::Connection => self.target.let_go(),
                    Left::Machine => return,
                },
                Input::Ended(_) => return,
                // Of a debugger that has left.
                Input::Bytes(_) | Input::Closed | Input::Stopped => {}
            }
        }
    }

    fn debug(&mut self, stream: Arc<Stream>) -> Left {
        tracing::info!("gdb: connected");
        self.bytes.clear();
        if !self.target.stop() {
            return Left::Machine;
        }
        let wire = Wire(stream, Vec::new());
        match self.converse(wire) {
            Ok(left) => left,
            Err(why) => {
                tracing::warn!("gdb: the connection is given up: {why}");
                Left::Connection
            }
        }
    }

    fn converse(&mut self, wire: Wire) -> Result<Left, String> {
        let stub = GdbStub::builder(wire).packet_buffer_size(0x4000).build().map_err(|e| e.to_string())?;
        let target = &mut self.target;
        let mut machine = stub.run_state_machine(target).map_err(|e| e.to_string())?;
        loop {
            machine = match machine {
                GdbStubStateMachine::Disconnected(gone) => {
                    return Ok(match gone.get_reason() {
                        DisconnectReason::Kill => {
                            target.kill();
                            Left::Connection
                        }
                        DisconnectReason::TargetExited(_) | DisconnectReason::TargetTerminated(_) => {
                            Left::Machine
                        }
                        DisconnectReason::Disconnect => Left::Connection,
                    });
                }
                GdbStubStateMachine::CtrlCInterrupt(stub) => {
                    if !target.stop() {
                        return Ok(Left::Machine);
                    }
                    let reason = target.reason().unwrap_or(MultiThreadStopReason::SignalWithThread {
                        tid: tid(0),
                        signal: Signal::SIGINT,
                    });
                    stub.interrupt_handled(target, Some(reason)).map_err(|e| e.to_string())?
                }
                GdbStubStateMachine::Idle(stub) => {
                    let Some(byte) = self.bytes.pop_front() else {
                        match next(&self.inputs, &self.spent).ok_or("nobody is left")? {
                            Input::Bytes(bytes) => self.bytes.extend(bytes),
                            Input::Closed => return Ok(Left::Connection),
                            Input::Ended(_) => return Ok(Left::Machine),
                            Input::Stopped | Input::Connected(_) => {}
                        }
                        machine = stub.into();
                        continue;
                    };
                    stub.incoming_data(target, byte).map_err(|e| e.to_string())?
                }
                GdbStubStateMachine::Running(stub) => {
                    if let Some(byte) = self.bytes.pop_front() {
                        machine = stub.incoming_data(target, byte).map_err(|e| e.to_string())?;
                        continue;
                    }
                    match next(&self.inputs, &self.spent).ok_or("nobody is left")? {
                        Input::Bytes(bytes) => {
                            self.bytes.extend(bytes);
                            stub.into()
                        }
                        Input::Closed => return Ok(Left::Connection),
                        Input::Connected(_) => stub.into(),
                        Input::Ended(status) => stub
                            .report_stop(target, MultiThreadStopReason::Exited(status))
                            .map_err(|e| e.to_string())?,
                        Input::Stopped => {
                            // All stand still before one is told of.
                            let alive = target.stop();
                            match target.reason() {
                                Some(reason) if alive => {
                                    stub.report_stop(target, reason).map_err(|e| e.to_string())?
                                }
                                // The end is about to be told.
                                _ => stub.into(),
                            }
                        }
                    }
                }
            };
        }
    }
}

impl<V: Debugged> Drop for Session<V> {
    fn drop(&mut self) {
        // Whatever happened to this thread, no vCPU may wait for it for ever.
        self.target.let_go();
    }
}
