//! How a piece of advice is written down: in the words in which the configuration came.

use satori_hyperv::{Enlightenment, Set};

/// Whose words a configuration is written in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Words {
    /// Nobody told: QEMU's and libvirt's.
    #[default]
    Any,
    /// libvirt's domain XML.
    Libvirt,
    /// QEMU's `-cpu`, as `--cpu` takes them.
    Qemu,
    /// Satori's `--hyperv`.
    Satori,
}

/// Something to change beside the enlightenments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Also {
    /// In the domain's XML; none if it has no words for it.
    pub libvirt: Option<&'static str>,
    /// On QEMU's command line.
    pub qemu: Option<&'static str>,
    /// On the host, or in the guest.
    pub host: Option<&'static str>,
}

/// An enlightenment as libvirt has it; none where another of `set` writes the same element with more in it.
fn libvirt(one: Enlightenment, set: Set) -> Option<&'static str> {
    let name = |snippet: &'static str| snippet.split([' ', '/', '>']).next();
    let snippet = one.row().libvirt?;
    let mut others = set.iter().filter(|other| *other != one).filter_map(|other| other.row().libvirt);
    let fuller = |other: &str| other.len() > snippet.len() && other.contains("><");
    (!others.any(|other| name(other) == name(snippet) && fuller(other))).then_some(snippet)
}

/// What is to be written so that `offer` is there with all it needs, beside what is offered already, and `without` is not.
pub(super) fn written(
    words: Words,
    offer: &[Enlightenment],
    without: &[Enlightenment],
    offered: Option<Set>,
    also: &[Also],
) -> Vec<String> {
    let wanted: Set = offer.iter().copied().collect();
    let missing: Vec<_> =
        wanted.closed().iter().filter(|one| !offered.is_some_and(|set| set.has(*one))).collect();
    let missing: Set = missing.into_iter().collect();
    let mut lines = Vec::new();
    if words != Words::Libvirt && words != Words::Satori {
        let on = missing
            .iter()
            .filter_map(|one| Some((one.row().qemu?, one.row().value.map_or("", |_| "=0xfff"))));
        let on = on.map(|(name, value)| format!("{name}{value}"));
        let off = without.iter().filter_map(|one| one.row().qemu).map(|name| format!("{name}=off"));
        let all: Vec<_> = on.chain(off).collect();
        if !all.is_empty() {
            lines.push(format!("QEMU: -cpu ...,{}", all.join(",")));
        }
        lines.extend(also.iter().filter_map(|one| one.qemu).map(|text| format!("QEMU: {text}")));
    }
    if words == Words::Satori {
        let on = missing.iter().map(|one| one.name().to_owned());
        let off = without.iter().map(|one| format!("-{}", one.name()));
        let all: Vec<_> = on.chain(off).collect();
        if !all.is_empty() {
            lines.push(format!("--hyperv ...,{}", all.join(",")));
        }
    }
    if words == Words::Libvirt || words == Words::Any {
        let parts = |timer: bool| {
            let own = missing
                .iter()
                .filter_map(|one| libvirt(one, missing))
                .filter(move |text| text.starts_with("<timer") == timer);
            own.collect::<String>()
        };
        let (inside, timers) = (parts(false), parts(true));
        if !inside.is_empty() {
            lines.push(format!("XML: <features><hyperv>{inside}</hyperv></features>"));
        }
        let more: String =
            also.iter().filter_map(|one| one.libvirt).filter(|text| text.starts_with("<timer")).collect();
        if !timers.is_empty() || !more.is_empty() {
            lines.push(format!("XML: <clock>{timers}{more}</clock>"));
        }
        let off =
            without.iter().filter_map(|one| one.row().libvirt).map(|text| text.replace("'on'", "'off'"));
        let off: String = off.collect();
        if !off.is_empty() {
            lines.push(format!("XML: <features><hyperv>{off}</hyperv></features>"));
        }
        let rest = also.iter().filter_map(|one| one.libvirt).filter(|text| !text.starts_with("<timer"));
        lines.extend(rest.map(|text| format!("XML: {text}")));
    }
    lines.extend(also.iter().filter_map(|one| one.host).map(Into::into));
    lines
}

#[cfg(test)]
mod tests {
    use satori_hyperv::Enlightenment as E;

    use super::*;

    const HPET: Also = Also {
        libvirt: Some("<timer name='hpet' present='no'/>"),
        qemu: Some("-machine hpet=off"),
        host: None,
    };

    #[test]
    fn what_is_needed_is_written_along() {
        let lines = written(Words::Libvirt, &[E::StimerDirect], &[], None, &[HPET]);
        assert_eq!(
            lines,
            [
                "XML: <features><hyperv><vpindex state='on'/><synic state='on'/><stimer state='on'><direct state='on'/></stimer></hyperv></features>",
                "XML: <clock><timer name='hypervclock' present='yes'/><timer name='hpet' present='no'/></clock>"
            ]
        );
        let lines = written(Words::Qemu, &[E::Stimer], &[E::Ipi], None, &[HPET]);
        assert_eq!(
            lines,
            ["QEMU: -cpu ...,hv-vpindex,hv-time,hv-synic,hv-stimer,hv-ipi=off", "QEMU: -machine hpet=off"]
        );
    }

    #[test]
    fn what_is_there_is_not_written_again() {
        let offered: Set = [E::Stimer].into_iter().collect();
        let lines =
            written(Words::Satori, &[E::StimerDirect, E::Spinlocks], &[], Some(offered.closed()), &[]);
        assert_eq!(lines, ["--hyperv ...,spinlocks,stimer_direct"]);
        let lines = written(Words::Any, &[E::Stimer], &[], Some(offered.closed()), &[HPET]);
        assert_eq!(lines.len(), 2, "{lines:?}");
    }
}
