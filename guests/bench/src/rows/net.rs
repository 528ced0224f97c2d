//! TCP to the host: through the guest's card and the user network, on the host to itself. The other side is `satori bench`
//! (`crates/tools/bench/src/devices/server.rs`): the first byte of a connection tells what it does.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::fail;
use crate::measure::Meter;

/// What goes one way before the other side answers.
const PIECE: usize = 1 << 20;

fn connect(m: &mut Meter, host: Option<&str>, what: u8) -> Option<TcpStream> {
    let Some(host) = host else {
        m.absent = Some("no host was named".into());
        return None;
    };
    let mut stream = TcpStream::connect(host).unwrap_or_else(|why| fail(host, &why));
    let asked = stream.set_nodelay(true).and_then(|()| stream.write_all(&[what]));
    asked.unwrap_or_else(|why| fail(host, &why));
    Some(stream)
}

/// A byte there and back.
pub fn ping(m: &mut Meter, host: Option<&str>) {
    let Some(mut stream) = connect(m, host, b'e') else { return };
    m.each(|| {
        let mut byte = [5];
        let done = stream.write_all(&byte).and_then(|()| stream.read_exact(&mut byte));
        u64::from(done.is_err() || byte != [5])
    });
}

/// A connection from its beginning to its end.
pub fn connection(m: &mut Meter, host: Option<&str>) {
    if connect(m, host, b'e').is_none() {
        return;
    }
    let mut absent = Meter::default();
    m.each(|| {
        let Some(mut stream) = connect(&mut absent, host, b'c') else { return 1 };
        let mut byte = [0];
        u64::from(stream.read(&mut byte).ok() != Some(0))
    });
}

/// 1 MiB to the host, which says when it has it.
pub fn send(m: &mut Meter, host: Option<&str>) {
    let Some(mut stream) = connect(m, host, b's') else { return };
    let piece = vec![3; PIECE];
    m.each(|| {
        let mut byte = [0];
        let done = stream.write_all(&piece).and_then(|()| stream.read_exact(&mut byte));
        u64::from(done.is_err() || byte != [3])
    });
}

/// 1 MiB from the host.
pub fn receive(m: &mut Meter, host: Option<&str>) {
    let Some(mut stream) = connect(m, host, b'r') else { return };
    let mut piece = vec![0; PIECE];
    m.each(|| {
        let done = stream.write_all(&[1]).and_then(|()| stream.read_exact(&mut piece));
        u64::from(done.is_err() || piece[PIECE - 1] != 4)
    });
}

/// 1 MiB on each of two connections, to the host (`s`) or from it (`r`): a card with several pairs of queues has one for each.
pub fn two(m: &mut Meter, host: Option<&str>, what: u8) {
    let (Some(first), Some(second)) = (connect(m, host, what), connect(m, host, what)) else { return };
    let mut streams = [first, second];
    m.each(|| {
        std::thread::scope(|scope| {
            let both = streams.each_mut().map(|stream| scope.spawn(move || piece(stream, what)));
            both.into_iter().map(|one| u64::from(!one.join().is_ok_and(|done| done))).sum()
        })
    });
}

/// 1 MiB one way; whether it came.
fn piece(stream: &mut TcpStream, what: u8) -> bool {
    let (mut byte, mut bytes) = ([0], vec![3; PIECE]);
    if what == b's' {
        return stream.write_all(&bytes).and_then(|()| stream.read_exact(&mut byte)).is_ok() && byte == [3];
    }
    stream.write_all(&[1]).and_then(|()| stream.read_exact(&mut bytes)).is_ok() && bytes[PIECE - 1] == 4
}
