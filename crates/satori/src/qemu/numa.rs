//! `-numa`, and the memory that `-object` makes for its nodes.

use std::collections::BTreeMap;
use std::ffi::OsString;

use anyhow::{Context, Result, bail};

use super::words::Wishes;
use crate::units::size;

/// What a node is 10 from itself and, unless told, 20 from others.
const HERE: u32 = 10;
const ELSEWHERE: u32 = 20;

/// Nodes, as far as they were told of.
#[derive(Debug, Default)]
pub(super) struct Numa {
    /// Bytes of memory by the name of their object, and the words of `--numa` that say on which of the host's nodes it is.
    backends: BTreeMap<String, (u64, Vec<String>)>,
    nodes: Vec<Node>,
    distances: BTreeMap<(usize, usize), u32>,
}

#[derive(Debug, Default)]
struct Node {
    cpus: Vec<String>,
    memory: Option<u64>,
    /// An object's name, which may come later.
    backend: Option<String>,
}

impl Numa {
    /// `-object memory-backend-ram,id=ID,size=SIZE`; false if it is another object.
    pub(super) fn object(&mut self, text: &str) -> Result<bool> {
        let (kind, parts) = Wishes::parts(text);
        if !matches!(kind, "memory-backend-ram" | "memory-backend-memfd") {
            return Ok(false);
        }
        let part = |key: &str| parts.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
        let (Some(id), Some(bytes)) = (part("id"), part("size")) else {
            bail!("-object {text}: write id=ID and size=SIZE");
        };
        // Bytes without a unit, other than -m.
        let bytes = bytes
            .parse()
            .map_err(|_| ())
            .or_else(|()| size(bytes).map_err(|why| anyhow::anyhow!("-object {text}: {why}")))?;
        let host = part("host-nodes").map(|nodes| format!("host-nodes={nodes}"));
        // QEMU's word for what is so without any.
        let policy = part("policy").filter(|policy| *policy != "default");
        let policy = policy.map(|policy| format!("policy={policy}"));
        if policy.is_some() && host.is_none() {
            bail!("-object {text}: policy= is of the host's nodes: write host-nodes=0 as well");
        }
        self.backends.insert(id.to_owned(), (bytes, host.into_iter().chain(policy).collect()));
        Ok(true)
    }

    /// `-numa node[,nodeid=N][,cpus=N-N]..[,mem=SIZE|memdev=ID]` or `-numa dist,src=N,dst=N,val=N`.
    pub(super) fn read(&mut self, text: &str) -> Result<()> {
        let (kind, parts) = Wishes::parts(text);
        let number = |value: &str| {
            value.parse::<u32>().with_context(|| format!("-numa {text}: '{value}' is no number"))
        };
        match kind {
            "node" => {
                let mut node = Node::default();
                for (key, value) in parts {
                    match key {
                        "nodeid" if number(value)? as usize == self.nodes.len() => {}
                        "nodeid" => bail!(
                            "-numa {text}: write nodes in their order, the next is nodeid={}",
                            self.nodes.len()
                        ),
                        "cpus" => node.cpus.push(value.to_owned()),
                        "mem" => {
                            node.memory =
                                Some(size(value).map_err(|why| anyhow::anyhow!("-numa {text}: {why}"))?);
                        }
                        "memdev" => node.backend = Some(value.to_owned()),
                        _ => bail!("-numa {text}: '{key}' is not understood here: leave it out"),
                    }
                }
                self.nodes.push(node);
            }
            "dist" => {
                let part = |key: &str| {
                    let found = parts.iter().find(|(name, _)| *name == key);
                    number(found.with_context(|| format!("-numa {text}: write src=, dst= and val="))?.1)
                };
                self.distances.insert((part("src")? as usize, part("dst")? as usize), part("val")?);
            }
            _ => bail!(
                "-numa {text}: '{kind}' is not understood here: write node or dist, and cpus= in the node"
            ),
        }
        Ok(())
    }

    /// The words of `satori run`.
    pub(super) fn put(&self, all: &mut Vec<OsString>) -> Result<()> {
        let count = self.nodes.len();
        if let Some((src, dst)) = self.distances.keys().find(|(src, dst)| *src >= count || *dst >= count) {
            bail!("-numa dist,src={src},dst={dst}: there are {count} nodes");
        }
        // One that has all, as virtme-ng writes it for the sake of shared memory.
        let backend = |node: &Node| match &node.backend {
            Some(id) => {
                let found = self.backends.get(id);
                let found = found
                    .with_context(|| format!("-numa node,memdev={id}: there is no -object with id={id}"))?;
                Ok::<_, anyhow::Error>((Some(found.0), &found.1[..]))
            }
            None => Ok((node.memory, &[][..])),
        };
        if let [node] = &self.nodes[..]
            && (node.backend.is_none() || backend(node).is_ok_and(|(_, host)| host.is_empty()))
        {
            return Ok(());
        }
        for (number, node) in self.nodes.iter().enumerate() {
            let (memory, host) = backend(node)?;
            let memory = memory.map(|bytes| format!("memory={}K", bytes >> 10));
            let cpus = (!node.cpus.is_empty()).then(|| format!("cpus={}", node.cpus.join(":")));
            let far = |other: usize| match self.distances.get(&(number, other)) {
                // What is told of one way alone is told of both.
                None if other != number => self.distances.get(&(other, number)).copied().unwrap_or(ELSEWHERE),
                None => HERE,
                Some(far) => *far,
            };
            let distances = (0..count).map(|other| far(other).to_string()).collect::<Vec<_>>().join(":");
            let parts = memory.into_iter().chain(cpus).chain([format!("distances={distances}")]);
            let parts = parts.chain(host.iter().cloned());
            all.push(format!("--numa={}", parts.collect::<Vec<_>>().join(",")).into());
        }
        Ok(())
    }
}
