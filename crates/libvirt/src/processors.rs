//! Memory, processors, and which of the host's they may use.

use crate::domain::{Pin, Whose};
use crate::reader::Reader;
use crate::tree::Node;
use crate::values::{count, cpuset, size};

pub(crate) fn memory(reader: &mut Reader, node: &Node) {
    reader.only(node, &["unit", "dumpCore"]);
    match size(&node.text, node.attribute("unit").map(|unit| unit.value.as_str())) {
        Ok(bytes) => reader.domain.memory = Some((bytes, reader.place(node.at))),
        Err(text) => reader.wrong(node.at, text),
    }
}

pub(crate) fn current_memory(reader: &mut Reader, node: &Node) {
    reader.only(node, &["unit"]);
    match size(&node.text, node.attribute("unit").map(|unit| unit.value.as_str())) {
        Ok(bytes) if reader.domain.memory.is_some_and(|(whole, _)| bytes < whole) => {
            reader.warn(
                node.at,
                "<currentMemory> is not honoured: there is no balloon, the guest has all".into(),
            );
        }
        Ok(_) => {}
        Err(text) => reader.wrong(node.at, text),
    }
}

pub(crate) fn vcpu(reader: &mut Reader, node: &Node) {
    reader.only(node, &["placement", "cpuset", "current"]);
    let wrong = |text: &str| format!("'{}' is no number of processors: write 1 to 255", text.trim());
    match count(&node.text).filter(|number| *number <= satori_cpuid::MAX_CPUS) {
        Some(number) => reader.domain.vcpus = Some((number, reader.place(node.at))),
        None if count(&node.text).is_some() => return reader.not_ours(node.at, wrong(&node.text)),
        None => return reader.wrong(node.at, wrong(&node.text)),
    }
    if let Some(current) = node.attribute("current") {
        match count(&current.value) {
            Some(now) if reader.domain.vcpus.is_some_and(|(all, _)| now == all) => {}
            Some(_) => reader.warn(
                current.at,
                "current is not honoured: processors cannot be plugged in later, all are there".into(),
            ),
            None => reader.wrong(current.at, wrong(&current.value)),
        }
    }
    if let Some(set) = node.attribute("cpuset") {
        reader.pin(Whose::Vcpus, &set.value, set.at);
    }
}

pub(crate) fn cputune(reader: &mut Reader, node: &Node) {
    reader.no_text(node);
    reader.children(node, "cputune");
}

pub(crate) fn vcpupin(reader: &mut Reader, node: &Node) {
    reader.only(node, &["vcpu", "cpuset"]);
    let (Some(vcpu), Some(set)) = (node.attribute("vcpu"), node.attribute("cpuset")) else {
        return reader
            .wrong(node.at, "<vcpupin> needs vcpu and cpuset: write <vcpupin vcpu='0' cpuset='8'/>".into());
    };
    match vcpu.value.trim().parse() {
        Ok(index) if reader.domain.pins.iter().any(|pin| pin.whose == Whose::Vcpu(index)) => {
            reader.wrong(vcpu.at, format!("vCPU {index} is pinned twice: leave one out"));
        }
        Ok(index) => reader.pin(Whose::Vcpu(index), &set.value, set.at),
        Err(_) => reader.wrong(vcpu.at, format!("'{}' is no vCPU: write a number from 0", vcpu.value)),
    }
}

pub(crate) fn emulatorpin(reader: &mut Reader, node: &Node) {
    reader.only(node, &["cpuset"]);
    match node.attribute("cpuset") {
        Some(set) => reader.pin(Whose::Emulator, &set.value, set.at),
        None => reader.wrong(node.at, "<emulatorpin> needs a cpuset: write <emulatorpin cpuset='0'/>".into()),
    }
}

impl Reader<'_> {
    pub(crate) fn pin(&mut self, whose: Whose, set: &str, at: usize) {
        match cpuset(set) {
            Ok(cpus) => {
                let place = self.place(at);
                self.domain.pins.push(Pin { whose, cpus, place });
            }
            Err(text) => self.wrong(at, text),
        }
    }
}
