//! Which of several devices to use. Decisions only.

use std::cmp::Reverse;

use twinband_protocol::{Device, DeviceKind, Fault, FaultCode};

use super::fault::fault;

/// Indices of the devices that are not another one again, in order. A device is listed twice when two manifests lead to
/// it; of the two, a driver on top of another driver is left out.
pub(super) fn distinct(uuids: &[[u8; 16]], layered: &[bool]) -> Vec<usize> {
    let best = |i: usize| {
        let same = (0..uuids.len()).filter(|j| uuids[*j] == uuids[i]);
        same.min_by_key(|j| (layered[*j], *j))
    };
    (0..uuids.len()).filter(|i| best(*i) == Some(*i)).collect()
}

/// The device to use. `wanted` is a UUID, a part of a name, or an index; `software` allows a CPU in disguise although
/// nobody named it.
pub(super) fn choose(devices: &[&Device], wanted: Option<&str>, software: bool) -> Result<usize, Fault> {
    if devices.is_empty() {
        return Err(fault(FaultCode::NoDevice, "there is no Vulkan device"));
    }
    if let Some(wanted) = wanted {
        let index = named(devices, wanted).ok_or_else(|| {
            fault(FaultCode::NoFitDevice, format!("no device is {wanted:?}: there is {}", list(devices)))
        })?;
        return match &devices[index].unfit {
            Some(why) if devices[index].formats.is_empty() => {
                Err(fault(FaultCode::NoFitDevice, format!("{} cannot be used: {why}", devices[index].name)))
            }
            _ => Ok(index),
        };
    }
    let usable = |d: &Device| !d.formats.is_empty() && (d.unfit.is_none() || software);
    let fit = (0..devices.len()).filter(|i| usable(devices[*i]));
    fit.min_by_key(|i| rank(devices[*i].kind))
        .ok_or_else(|| fault(FaultCode::NoFitDevice, format!("no device is fit: there is {}", list(devices))))
}

fn rank(kind: DeviceKind) -> u8 {
    match kind {
        DeviceKind::Discrete => 0,
        DeviceKind::Integrated => 1,
        DeviceKind::Virtual => 2,
        DeviceKind::Other => 3,
        DeviceKind::Cpu => 4,
    }
}

/// UUIDs are exact and names lasting; an index means another device as soon as one is added, so it comes last.
fn named(devices: &[&Device], wanted: &str) -> Option<usize> {
    let wanted = wanted.trim().to_lowercase();
    let hex: String = wanted.chars().filter(|c| *c != '-').collect();
    if let Some(i) = devices.iter().position(|d| d.uuid_text() == hex) {
        return Some(i);
    }
    if let Ok(index) = wanted.parse::<usize>()
        && index < devices.len()
    {
        return Some(index);
    }
    let names = devices.iter().enumerate().map(|(i, d)| (i, d.name.to_lowercase()));
    // The whole name before a part of it, and of several the most capable.
    let matching = names.filter(|(_, name)| !wanted.is_empty() && name.contains(&wanted));
    matching
        .max_by_key(|(i, name)| (*name == wanted, Reverse(rank(devices[*i].kind)), Reverse(*i)))
        .map(|(i, _)| i)
}

fn list(devices: &[&Device]) -> String {
    let one = |d: &&Device| match &d.unfit {
        Some(why) => format!("{} ({why})", d.name),
        None => d.name.clone(),
    };
    devices.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, kind: DeviceKind, id: u8) -> Device {
        let cpu = kind == DeviceKind::Cpu;
        Device {
            name: name.to_owned(),
            kind,
            uuid: [id; 16],
            formats: vec![2],
            unfit: cpu.then(|| "a CPU".to_owned()),
            ..Device::default()
        }
    }

    #[test]
    fn the_best_fit_device_is_taken_unless_another_is_named() {
        use DeviceKind::{Cpu, Discrete, Integrated};
        let broken =
            Device { formats: vec![], unfit: Some("no queue".to_owned()), ..device("Broken", Discrete, 9) };
        let all =
            [device("llvmpipe", Cpu, 1), device("Iris", Integrated, 2), device("Big 0", Discrete, 3), broken];
        let all: Vec<&Device> = all.iter().collect();
        let pick = |wanted: Option<&str>, software| choose(&all, wanted, software).map_err(|f| f.code);
        assert_eq!(pick(None, false), Ok(2));
        assert_eq!(pick(None, true), Ok(2));
        assert_eq!(pick(Some("LLVM"), false), Ok(0));
        assert_eq!(pick(Some("i"), false), Ok(2));
        assert_eq!(pick(Some("iris"), false), Ok(1));
        assert_eq!(pick(Some("02020202-0202-0202-0202-020202020202"), false), Ok(1));
        assert_eq!(pick(Some("0"), false), Ok(0));
        assert_eq!(pick(Some("7"), false), Err(FaultCode::NoFitDevice));
        assert_eq!(pick(Some(""), false), Err(FaultCode::NoFitDevice));
        assert_eq!(pick(Some("broken"), false), Err(FaultCode::NoFitDevice));
        let cpu_only = |software| choose(&all[..1], None, software).map_err(|f| f.code);
        assert_eq!(cpu_only(false), Err(FaultCode::NoFitDevice));
        assert_eq!(cpu_only(true), Ok(0));
        assert_eq!(choose(&[], None, true).map_err(|f| f.code), Err(FaultCode::NoDevice));
    }

    #[test]
    fn a_device_listed_twice_counts_once() {
        let uuids = [[1; 16], [2; 16], [1; 16], [3; 16]];
        assert_eq!(distinct(&uuids, &[false; 4]), [0, 1, 3]);
        assert_eq!(distinct(&uuids, &[true, false, false, true]), [1, 2, 3]);
        assert_eq!(distinct(&[], &[]), Vec::<usize>::new());
    }
}
