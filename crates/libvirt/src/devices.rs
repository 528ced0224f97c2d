//! Disks, network cards, folders, I/O threads and NUMA nodes.

use crate::domain::{Disk, Filesystem, Interface, Network, Node as Numa, Placement, Whose};
use crate::reader::Reader;
use crate::tree::{Attribute, Node};
use crate::values::{count, cpuset, size};

/// Most ports of one `<range>`.
const PORTS: u16 = 256;

fn text(node: &Node, name: &str) -> Option<String> {
    node.attribute(name).map(|attribute| attribute.value.trim().to_owned())
}

/// Tells what becomes of an attribute that is not `right`.
fn unless(reader: &mut Reader, node: &Node, name: &str, right: &[&str]) -> bool {
    match node.attribute(name) {
        Some(found) if !right.contains(&found.value.trim()) => {
            let write = right.first().copied().unwrap_or_default();
            reader.warn(
                node.at,
                format!(
                    "<{}> is not honoured: {name}='{}' is not there: write {name}='{write}'",
                    node.name, found.value
                ),
            );
            true
        }
        _ => false,
    }
}

pub(crate) fn disk(reader: &mut Reader, node: &Node) {
    if unless(reader, node, "type", &["file", "block"]) || unless(reader, node, "device", &["disk", "lun"]) {
        return;
    }
    reader.domain.disks.push(Disk { place: Some(reader.place(node.at)), ..Disk::default() });
    reader.children(node, "disk");
    let last = reader.domain.disks.last();
    if last.is_some_and(|disk| disk.file.is_empty() && !disk.other) {
        reader.wrong(node.at, "<disk> names no image: write <source file='..'/> in it".into());
    }
    if last_is(reader, |disk| disk.file.is_empty() || disk.other) {
        reader.domain.disks.pop();
    }
}

fn last_is(reader: &Reader, what: impl Fn(&Disk) -> bool) -> bool {
    reader.domain.disks.last().is_some_and(what)
}

fn change(reader: &mut Reader, change: impl FnOnce(&mut Disk)) {
    reader.domain.disks.last_mut().map(change);
}

pub(crate) fn disk_driver(reader: &mut Reader, node: &Node) {
    match text(node, "type").as_deref() {
        None | Some("raw") => {}
        Some("qcow2") => change(reader, |disk| disk.qcow2 = true),
        Some(other) => {
            let wrong = format!("<disk> is not honoured: images are raw or qcow2, not '{other}': convert it");
            reader.warn(node.at, wrong);
            change(reader, |disk| disk.other = true);
        }
    }
    if let Some(cache) = text(node, "cache").filter(|cache| cache != "default") {
        change(reader, |disk| disk.cache = Some(cache));
    }
    if let Some(thread) = node.attribute("iothread") {
        match count(&thread.value) {
            Some(id) => {
                let place = reader.place(thread.at);
                change(reader, |disk| disk.iothread = Some((id, place)));
            }
            None => not_a_thread(reader, thread),
        }
    }
}

fn not_a_thread(reader: &mut Reader, attribute: &Attribute) {
    let text = format!("'{}' is no I/O thread: write a number from 1", attribute.value);
    reader.wrong(attribute.at, text);
}

pub(crate) fn disk_source(reader: &mut Reader, node: &Node) {
    let file = text(node, "file").or_else(|| text(node, "dev")).unwrap_or_default();
    change(reader, |disk| disk.file = file);
}

pub(crate) fn disk_target(reader: &mut Reader, node: &Node) {
    let device = text(node, "dev").unwrap_or_default();
    let bus =
        text(node, "bus").unwrap_or_else(|| if device.starts_with("vd") { "virtio" } else { "ide" }.into());
    if bus != "virtio" {
        let name = format!(
            "<disk> is not honoured: there is no bus '{bus}': write <target dev='vda' bus='virtio'/>"
        );
        reader.warn(node.at, name);
        change(reader, |disk| disk.other = true);
    }
}

pub(crate) fn disk_readonly(reader: &mut Reader, _: &Node) {
    change(reader, |disk| disk.readonly = true);
}

pub(crate) fn disk_transient(reader: &mut Reader, _: &Node) {
    change(reader, |disk| disk.transient = true);
}

pub(crate) fn disk_serial(reader: &mut Reader, node: &Node) {
    change(reader, |disk| disk.serial = node.text.trim().into());
}

pub(crate) fn interface(reader: &mut Reader, node: &Node) {
    let kind = text(node, "type").unwrap_or_default();
    let model =
        node.children.iter().find(|child| child.name == "model").and_then(|model| text(model, "type"));
    let network = match kind.as_str() {
        "user" => Network::User,
        "ethernet" => {
            let target = node.children.iter().find(|child| child.name == "target");
            let Some(name) = target.and_then(|target| text(target, "dev")) else {
                let wrong =
                    "<interface type='ethernet'> names no tap: write <target dev='tap0' managed='no'/> in it";
                return reader.wrong(node.at, wrong.into());
            };
            Network::Tap(name)
        }
        _ => {
            return reader.warn(
                node.at,
                format!("<interface> is not honoured: type='{kind}' is libvirt's own affair: write type='user', or type='ethernet' with a tap"),
            );
        }
    };
    if let Some(model) = model.filter(|model| !model.starts_with("virtio")) {
        return reader.warn(
            node.at,
            format!("<interface> is not honoured: there is no '{model}': write <model type='virtio'/>"),
        );
    }
    if !reader.domain.interfaces.is_empty() {
        return reader.warn(
            node.at,
            "<interface> is not honoured: there is one network card, and this is another".into(),
        );
    }
    let place = Some(reader.place(node.at));
    reader.domain.interfaces.push(Interface {
        network,
        mac: None,
        queues: None,
        forwards: Vec::new(),
        place,
    });
    reader.children(node, "interface");
}

pub(crate) fn mac(reader: &mut Reader, node: &Node) {
    let address = text(node, "address");
    if let Some(card) = reader.domain.interfaces.last_mut() {
        card.mac = address;
    }
}

pub(crate) fn card_driver(reader: &mut Reader, node: &Node) {
    if let Some(name) = node.attribute("name").filter(|name| name.value == "vhost") {
        reader.warn(
            name.at,
            "name='vhost': a thread of Satori's own serves the card, not the host's kernel".into(),
        );
    }
    if let Some(queues) = node.attribute("queues") {
        match count(&queues.value) {
            Some(number) => {
                if let Some(card) = reader.domain.interfaces.last_mut() {
                    card.queues = Some(number);
                }
            }
            None => {
                reader.wrong(queues.at, format!("'{}' is no number of queues: write 1 to 8", queues.value))
            }
        }
    }
}

pub(crate) fn port_forward(reader: &mut Reader, node: &Node) {
    let proto = text(node, "proto").unwrap_or_default();
    let address = text(node, "address").unwrap_or_else(|| "0.0.0.0".into());
    for range in node.children.iter().filter(|child| child.name == "range") {
        let port = |name| range.attribute(name).map(|port| port.value.trim().parse::<u16>().ok());
        let (start, end, to) = (port("start").flatten(), port("end"), port("to"));
        let read = start.and_then(|start| {
            let (end, to) = (end.unwrap_or(Some(start))?, to.unwrap_or(Some(start))?);
            let fits = start <= end && end - start < PORTS && to.checked_add(end - start).is_some();
            fits.then_some((start..=end).zip(to..))
        });
        let Some(ports) = read.filter(|_| range.attribute("exclude").is_none()) else {
            let wrong =
                "<range> is ports of this host and where they lead: write <range start='2222' to='22'/>";
            reader.wrong(range.at, wrong.into());
            continue;
        };
        if let Some(card) = reader.domain.interfaces.last_mut() {
            card.forwards.extend(ports.map(|(from, to)| format!("{proto}:{address}:{from}:{to}")));
        }
    }
}

pub(crate) fn filesystem(reader: &mut Reader, node: &Node) {
    if unless(reader, node, "type", &["mount"]) {
        return;
    }
    if let Some(mode) = node.attribute("accessmode").filter(|mode| mode.value != "passthrough") {
        reader.warn(mode.at, format!("accessmode='{}' is not honoured: files are the caller's", mode.value));
    }
    let child = |name: &str, attribute: &str| {
        let found = node.children.iter().find(|child| child.name == name);
        found.and_then(|child| text(child, attribute)).unwrap_or_default()
    };
    let folder = Filesystem {
        folder: child("source", "dir"),
        tag: child("target", "dir"),
        plan9: child("driver", "type") != "virtiofs",
        readonly: node.children.iter().any(|child| child.name == "readonly"),
        place: Some(reader.place(node.at)),
    };
    if folder.folder.is_empty() || folder.tag.is_empty() {
        let wrong =
            "<filesystem> needs a folder and a tag: write <source dir='..'/> and <target dir='..'/> in it";
        return reader.wrong(node.at, wrong.into());
    }
    reader.domain.filesystems.push(folder);
    reader.children(node, "filesystem");
}

pub(crate) fn rng(reader: &mut Reader, node: &Node) {
    match unless(reader, node, "model", &["virtio"]) {
        true => {}
        false => reader.domain.rng = true,
    }
}

pub(crate) fn iothreads(reader: &mut Reader, node: &Node) {
    match count(&node.text).filter(|number| *number <= 64) {
        Some(number) => {
            let ids = &mut reader.domain.iothreads;
            let mut next = 1..;
            while ids.len() < number as usize {
                let Some(id) = next.find(|id| !ids.contains(id)) else { break };
                ids.push(id);
            }
        }
        None => reader
            .wrong(node.at, format!("'{}' is no number of I/O threads: write 1 to 64", node.text.trim())),
    }
}

pub(crate) fn iothreadids(reader: &mut Reader, node: &Node) {
    let mut ids = Vec::new();
    for child in &node.children {
        match child.attribute("id").map(|id| (count(&id.value), id)) {
            Some((Some(id), _)) => ids.push(id),
            Some((None, id)) => not_a_thread(reader, id),
            None => reader.wrong(child.at, "<iothread> needs an id: write <iothread id='1'/>".into()),
        }
    }
    // Named ones come first, and those that are only counted have what numbers are left.
    let total = reader.domain.iothreads.len().max(ids.len());
    let mut next = 1..;
    while ids.len() < total {
        let Some(id) = next.find(|id| !ids.contains(id)) else { break };
        ids.push(id);
    }
    reader.domain.iothreads = ids;
}

pub(crate) fn iothreadpin(reader: &mut Reader, node: &Node) {
    let (Some(thread), Some(set)) = (node.attribute("iothread"), node.attribute("cpuset")) else {
        let wrong = "<iothreadpin> needs iothread and cpuset: write <iothreadpin iothread='1' cpuset='0'/>";
        return reader.wrong(node.at, wrong.into());
    };
    match count(&thread.value) {
        Some(id) if reader.domain.pins.iter().any(|pin| pin.whose == Whose::IoThread(id)) => {
            reader.wrong(thread.at, format!("I/O thread {id} is pinned twice: leave one out"));
        }
        Some(id) => reader.pin(Whose::IoThread(id), &set.value, set.at),
        None => not_a_thread(reader, thread),
    }
}

/// `<numa>`, whose cells are in their order.
pub(crate) fn numa(reader: &mut Reader, node: &Node) {
    for (index, cell) in node.children.iter().enumerate() {
        let id = cell.attribute("id").map(|id| (id.value.trim().parse::<usize>().ok(), id.at));
        if let Some((_, at)) = id.filter(|(id, _)| *id != Some(index)) {
            reader.wrong(at, format!("cells are in their order here: write id='{index}'"));
        }
        let mut read = Numa { place: Some(reader.place(cell.at)), ..Numa::default() };
        match cell.attribute("cpus").map(|cpus| (cpuset(&cpus.value), cpus.at)) {
            Some((Ok(cpus), _)) => read.cpus = cpus,
            Some((Err(why), at)) => reader.wrong(at, why),
            None => {}
        }
        let unit = cell.attribute("unit").map(|unit| unit.value.as_str());
        match cell.attribute("memory").map(|memory| (size(&memory.value, unit), memory.at)) {
            Some((Ok(bytes), _)) => read.memory = bytes,
            Some((Err(why), at)) => reader.wrong(at, why),
            None => reader.wrong(cell.at, "<cell> needs memory: write memory='512' unit='MiB'".into()),
        }
        let siblings = cell.children.iter().filter(|child| child.name == "distances");
        for sibling in siblings.flat_map(|distances| &distances.children) {
            let word = |name| sibling.attribute(name).map(|value| value.value.trim());
            let (id, value) = (word("id").map(str::parse), word("value").map(str::parse));
            match (id, value) {
                (Some(Ok(id)), Some(Ok(value))) => read.distances.push((id, value)),
                _ => reader.wrong(sibling.at, "write <sibling id='1' value='20'/>".into()),
            }
        }
        reader.domain.numa.push(read);
    }
}

/// `<numatune>`.
pub(crate) fn numatune(reader: &mut Reader, node: &Node) {
    reader.children(node, "numatune");
}

/// What `mode` and `nodeset` of an element say, if it can be had.
fn placed(reader: &mut Reader, node: &Node) -> Option<Placement> {
    let mode = text(node, "mode").unwrap_or_else(|| "strict".into());
    if !["strict", "preferred", "interleave"].contains(&mode.as_str()) {
        reader.warn(
            node.at,
            format!("<{}> is not honoured: there is no mode '{mode}': write mode='strict'", node.name),
        );
        return None;
    }
    let Some(set) = node.attribute("nodeset") else {
        let why = "nobody chooses nodes by what is free: write nodeset='0'";
        reader.warn(node.at, format!("<{}> is not honoured: {why}", node.name));
        return None;
    };
    match cpuset(&set.value) {
        Ok(nodes) => Some(Placement { mode, nodes }),
        Err(_) => {
            reader.wrong(set.at, format!("'{}' is no set of nodes: write 0-1 or 0,2", set.value));
            None
        }
    }
}

/// `<memory>` of `<numatune>`.
pub(crate) fn placement(reader: &mut Reader, node: &Node) {
    reader.domain.placement = placed(reader, node);
}

/// `<memnode>`.
pub(crate) fn memnode(reader: &mut Reader, node: &Node) {
    let Some(cell) = node.attribute("cellid") else {
        let wrong = "<memnode> needs cellid: write <memnode cellid='0' mode='strict' nodeset='0'/>";
        return reader.wrong(node.at, wrong.into());
    };
    match cell.value.trim().parse::<usize>() {
        Ok(number) => {
            if let Some(placement) = placed(reader, node) {
                let place = reader.place(cell.at);
                reader.memnodes.push((number, placement, place));
            }
        }
        Err(_) => reader.wrong(cell.at, format!("'{}' is no number of a cell: write cellid='0'", cell.value)),
    }
}

/// What only the whole tells: cells and I/O threads that nobody made.
pub(crate) fn finish(reader: &mut Reader) {
    for (number, placement, place) in std::mem::take(&mut reader.memnodes) {
        match reader.domain.numa.get_mut(number) {
            Some(cell) => cell.placement = Some(placement),
            None => {
                let wrong = format!("there is no cell {number}: write <cell id='{number}'/> in <cpu><numa>");
                reader.wrong_at(place, wrong);
            }
        }
    }
    let ids = &reader.domain.iothreads;
    let asked = reader.domain.disks.iter().filter_map(|disk| disk.iothread);
    let pinned = reader.domain.pins.iter().filter_map(|pin| match pin.whose {
        Whose::IoThread(id) => Some((id, pin.place)),
        _ => None,
    });
    // A part of a domain may be shown without the line that counts them.
    let missing = asked.chain(pinned).filter(|(id, _)| !ids.contains(id)).collect::<Vec<_>>();
    for (id, place) in missing {
        reader.wrong_at(place, format!("there is no I/O thread {id}: write <iothreads>{id}</iothreads>"));
    }
}
