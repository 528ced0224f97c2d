//! `--numa`: nodes of processors and memory.

use anyhow::{Result, bail};
use satori_machine::{Config, HOST_NODES, HostNodes, HostPolicy, NumaNode};

use crate::cli;
use crate::units::{STEP, checked_memory, size};

/// Most nodes: what Debian's kernels know, and more than a machine has.
const MOST: usize = 64;
/// Distances (ACPI 6.5, 5.2.17): within a node, to others unless told, and no way at all.
const HERE: u8 = 10;
const ELSEWHERE: u8 = 20;

/// To a node itself, and to another one unless told.
pub(crate) fn distance(here: bool) -> u8 {
    if here { HERE } else { ELSEWHERE }
}

/// One `--numa`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaSpec {
    /// Bytes.
    pub memory: Option<u64>,
    /// Numbers of vCPUs.
    pub cpus: Option<Vec<u32>>,
    /// To each node.
    pub distances: Option<Vec<u8>>,
    /// Nodes of the host's, and how memory is placed there.
    pub host: Option<HostNodes>,
}

/// Reads `[memory=SIZE][,cpus=N-N:N..][,distances=N:N..][,host-nodes=N-N:N[,policy=NAME]]`.
///
/// Errors with what to write instead.
pub fn spec(text: &str) -> Result<NumaSpec, String> {
    let mut spec = NumaSpec::default();
    let mut policy = None;
    for part in text.split(',').filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some(("memory", value)) => {
                let bytes = size(value)?;
                if bytes == 0 || !bytes.is_multiple_of(STEP) {
                    return Err("memory is a multiple of 2 MiB, and not none".into());
                }
                spec.memory = Some(bytes);
            }
            Some(("cpus", value)) => spec.cpus.get_or_insert_default().extend(cpus(value)?),
            Some(("distances", value)) => {
                let number = |text: &str| text.parse().ok().filter(|far| *far >= HERE);
                let all = value.split(':').map(number).collect::<Option<_>>();
                spec.distances =
                    Some(all.ok_or("distances are numbers from 10 to 255, such as 10:20, a node each")?);
            }
            Some(("host-nodes", value)) => {
                let nodes = numbers(value, HOST_NODES);
                let nodes =
                    nodes.ok_or("host-nodes are numbers of this host's nodes, such as 0, 0-1 or 0:2")?;
                spec.host = Some(HostNodes { nodes, policy: HostPolicy::Bind });
            }
            Some(("policy", value)) => policy = Some(host_policy(value)?),
            _ => {
                return Err(format!(
                    "'{part}' is none of memory=SIZE, cpus=0-1, distances=10:20, host-nodes=0 and policy=bind"
                ));
            }
        }
    }
    match (&mut spec.host, policy) {
        (Some(host), Some(policy)) => host.policy = policy,
        (None, Some(_)) => {
            return Err("policy says how memory is on host-nodes: write host-nodes=0 as well".into());
        }
        _ => {}
    }
    spec.host.as_ref().map_or(Ok(()), sound)?;
    Ok(spec)
}

/// Whether such nodes can be meant.
pub(crate) fn sound(host: &HostNodes) -> Result<(), String> {
    if host.policy == HostPolicy::Preferred && host.nodes.len() > 1 {
        return Err("one node of the host's is preferred, not several: name one, or bind to several".into());
    }
    Ok(())
}

/// QEMU's and libvirt's words for a policy.
pub(crate) fn host_policy(word: &str) -> Result<HostPolicy, String> {
    match word {
        "bind" | "strict" => Ok(HostPolicy::Bind),
        "preferred" => Ok(HostPolicy::Preferred),
        "interleave" => Ok(HostPolicy::Interleave),
        _ => Err(format!("'{word}' is no policy: write bind, preferred or interleave")),
    }
}

/// This host's nodes that have memory, if it tells.
fn host_nodes() -> Option<Vec<u32>> {
    let text = std::fs::read_to_string("/sys/devices/system/node/has_memory").ok()?;
    numbers(&text.trim().replace(',', ":"), HOST_NODES)
}

/// Refuses nodes that this host has not.
fn on_this_host(wanted: &HostNodes) -> Result<()> {
    let Some(here) = host_nodes() else {
        bail!("--numa: this host tells of no nodes (/sys/devices/system/node): leave host-nodes out");
    };
    if let Some(missing) = wanted.nodes.iter().find(|node| !here.contains(node)) {
        let have: Vec<_> = here.iter().map(u32::to_string).collect();
        bail!(
            "--numa: this host has no memory of its own on node {missing}: write host-nodes of {}",
            have.join(", ")
        );
    }
    Ok(())
}

/// `0-1:4`, each below `end`.
fn numbers(text: &str, end: u32) -> Option<Vec<u32>> {
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        (first <= last && last < end).then_some(first..=last)
    };
    let ranges = text.split(':').map(range).collect::<Option<Vec<_>>>();
    ranges.map(|ranges| ranges.into_iter().flatten().collect())
}

fn cpus(text: &str) -> Result<Vec<u32>, String> {
    let cpus = numbers(text, satori_cpuid::MAX_CPUS);
    cpus.ok_or_else(|| "cpus are numbers of vCPUs, such as 0, 0-3 or 0-1:4".into())
}

/// Gives processors and memory to the nodes of the flags, and finds that all of both are given away.
pub(crate) fn share_out(config: &mut Config, flags: &cli::Machine) -> Result<()> {
    let specs = &flags.numa;
    if specs.is_empty() {
        return Ok(());
    }
    if specs.len() > MOST {
        bail!("--numa: {} nodes are too many: {MOST} at most", specs.len());
    }
    let all = |told: usize, what: &str| match told {
        0 => Ok(false),
        count if count == specs.len() => Ok(true),
        _ => bail!("--numa: some nodes have {what} and some have none: write it for each, or for none"),
    };
    let sizes: Vec<_> = specs.iter().filter_map(|spec| spec.memory).collect();
    let sizes = if all(sizes.len(), "memory")? {
        let sum = sizes.iter().try_fold(0_u64, |sum, bytes| sum.checked_add(*bytes)).unwrap_or(u64::MAX);
        if flags.memory.is_none() && flags.processor.libvirt.is_none() {
            config.memory = match checked_memory(sum) {
                Ok(bytes) => bytes,
                Err(why) => bail!("--numa: the nodes' memory is the guest's: {why}"),
            };
        }
        if sum != config.memory {
            bail!(
                "--numa: the nodes have {} MiB, and the guest {}: write sizes that come to --memory, or leave one of the two out",
                sum >> 20,
                config.memory >> 20
            );
        }
        sizes
    } else {
        shares(config.memory / STEP, specs.len()).map(|steps| steps * STEP).collect()
    };
    let cpus = vcpus(specs, config.topology.cpus())?;
    let mut nodes = Vec::new();
    for ((number, spec), (cpus, memory)) in specs.iter().enumerate().zip(cpus.into_iter().zip(sizes)) {
        if memory == 0 {
            bail!("--numa: {} nodes are too many for that memory", specs.len());
        }
        let far = |other| if other == number { HERE } else { ELSEWHERE };
        let distances = spec.distances.clone().unwrap_or_else(|| (0..specs.len()).map(far).collect());
        if distances.len() != specs.len() || distances[number] != HERE {
            bail!(
                "--numa: node {number} has {} distances: write one for each of {} nodes, 10 for itself",
                distances.len(),
                specs.len()
            );
        }
        spec.host.as_ref().map_or(Ok(()), on_this_host)?;
        nodes.push(NumaNode { cpus, memory, distances, host: spec.host.clone() });
    }
    in_sockets(config, &nodes);
    config.numa = nodes;
    Ok(())
}

/// `count` things for `nodes` nodes, as even as it goes.
fn shares(count: u64, nodes: usize) -> impl Iterator<Item = u64> {
    let nodes = nodes as u64;
    (0..nodes).map(move |node| count / nodes + u64::from(node < count % nodes))
}

/// The processors of each node.
fn vcpus(specs: &[NumaSpec], count: u32) -> Result<Vec<Vec<u32>>> {
    if specs.iter().all(|spec| spec.cpus.is_none()) {
        let mut next = 0..count;
        let taken =
            shares(count.into(), specs.len()).map(|share| next.by_ref().take(share as usize).collect());
        return Ok(taken.collect());
    }
    // A node of memory alone has none.
    let cpus: Vec<_> = specs.iter().map(|spec| spec.cpus.clone().unwrap_or_default()).collect();
    for cpu in 0..count {
        match cpus.iter().flatten().filter(|other| **other == cpu).count() {
            1 => {}
            0 => bail!("--numa: vCPU {cpu} is in no node: write cpus= of all {count}, or of none"),
            _ => bail!("--numa: vCPU {cpu} is in two nodes: name it once"),
        }
    }
    match cpus.iter().flatten().find(|cpu| **cpu >= count) {
        Some(cpu) => bail!("--numa: there is no vCPU {cpu}: the last one is {}", count - 1),
        None => Ok(cpus),
    }
}

/// A socket for each node, where one socket has all processors and each node as many in their order: a kernel expects that those which share a cache are in
/// one node.
fn in_sockets(config: &mut Config, nodes: &[NumaNode]) {
    let topology = config.topology;
    let with: Vec<_> = nodes.iter().filter(|node| !node.cpus.is_empty()).collect();
    let each = topology.cpus() / with.len().max(1) as u32;
    let in_order = with.iter().flat_map(|node| &node.cpus).copied().eq(0..topology.cpus());
    let even = with.iter().all(|node| node.cpus.len() == each as usize);
    if (topology.sockets, topology.dies) == (1, 1)
        && in_order
        && even
        && each.is_multiple_of(topology.threads)
    {
        config.topology.sockets = with.len() as u32;
        config.topology.cores = each / topology.threads;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use satori_cpuid::Topology;

    fn shared(words: &[&str], memory: u64, topology: Topology) -> Result<Config, String> {
        let words = ["satori", "run", "--kernel", "k"].iter().chain(words);
        let cli::Command::Run(run) = cli::Cli::try_parse_from(words).map_err(|why| why.to_string())?.command
        else {
            panic!("another command")
        };
        let mut config = Config { memory: memory << 20, topology, ..Config::default() };
        share_out(&mut config, &run.machine).map(|()| config).map_err(|why| why.to_string())
    }

    #[test]
    fn what_is_not_said_is_shared_out_evenly() {
        let config = shared(&["--numa", "", "--numa", "", "--numa", ""], 512, Topology::flat(4)).unwrap();
        let memory: Vec<_> = config.numa.iter().map(|node| node.memory >> 20).collect();
        assert_eq!(memory, [172, 170, 170]);
        let cpus: Vec<_> = config.numa.iter().map(|node| node.cpus.clone()).collect();
        assert_eq!(cpus, [vec![0, 1], vec![2], vec![3]]);
        assert_eq!((config.topology, &config.numa[1].distances[..]), (Topology::flat(4), &[20, 10, 20][..]));
        let even = shared(&["--numa", "", "--numa", ""], 512, Topology::flat(4)).unwrap();
        assert_eq!(even.topology, Topology { sockets: 2, cores: 2, ..Topology::flat(4) });
    }

    #[test]
    fn what_is_said_has_to_come_out() {
        let two =
            |first: &str, second: &str| shared(&["--numa", first, "--numa", second], 512, Topology::flat(3));
        let config = two("cpus=0:2,memory=128M,distances=10:99", "cpus=1,memory=384M").unwrap();
        assert_eq!((config.numa[0].cpus.clone(), config.memory >> 20), (vec![0, 2], 512));
        assert_eq!((&config.numa[0].distances[..], config.topology), (&[10, 99][..], Topology::flat(3)));
        // Without -m they are the guest's.
        assert_eq!(two("memory=1G", "memory=2G").unwrap().memory >> 30, 3);
        assert!(two("cpus=0-2", "").unwrap().numa[1].cpus.is_empty());
        for (first, second, said) in [
            ("cpus=0", "cpus=1", "vCPU 2 is in no node"),
            ("cpus=0-1", "cpus=1-2", "vCPU 1 is in two nodes"),
            ("cpus=0-2", "cpus=3", "there is no vCPU 3"),
            ("memory=1G", "", "some nodes have memory and some have none"),
            ("memory=32M", "memory=32M", "from 128M to 64G"),
            ("distances=10", "", "node 0 has 1 distances"),
            ("distances=20:10", "", "10 for itself"),
            ("distances=9:10", "", "from 10 to 255"),
            ("memory=3", "", "multiple of 2 MiB"),
            ("cpu=1", "", "'cpu=1' is none of"),
            ("cpus=2-1", "", "numbers of vCPUs"),
            ("host-nodes=x", "", "numbers of this host's nodes"),
            ("host-nodes=1023", "", "no memory of its own on node 1023"),
            ("policy=bind", "", "write host-nodes=0 as well"),
            ("host-nodes=0,policy=near", "", "'near' is no policy"),
            ("host-nodes=0:1,policy=preferred", "", "is preferred, not several"),
        ] {
            let error = two(first, second).unwrap_err();
            assert!(error.contains(said), "{first} {second}: {error}");
        }
        let error = shared(&["-m", "1G", "--numa", "memory=512M"], 1024, Topology::flat(1)).unwrap_err();
        assert!(error.contains("have 512 MiB, and the guest 1024"), "{error}");
    }
}
