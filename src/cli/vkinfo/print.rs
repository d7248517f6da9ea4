//! The findings in words.

use std::io::{self, Write};

use super::trial::Trial;
use super::{Findings, Found};
use crate::cli::report;

/// To standard output.
pub(super) fn print(findings: &Findings) -> anyhow::Result<()> {
    write(findings, &mut io::stdout().lock())?;
    Ok(())
}

/// `name` before the first of the lines, blanks before the others.
fn lines(out: &mut impl Write, name: &str, lines: impl IntoIterator<Item = String>) -> io::Result<()> {
    let mut name = name;
    for line in lines {
        writeln!(out, "{name:<13} {line}")?;
        name = "";
    }
    if !name.is_empty() {
        writeln!(out, "{name:<13} none")?;
    }
    Ok(())
}

fn line(out: &mut impl Write, name: &str, text: impl Into<String>) -> io::Result<()> {
    lines(out, name, [text.into()])
}

fn write(f: &Findings, out: &mut impl Write) -> io::Result<()> {
    line(out, "worker", f.worker.display().to_string())?;
    line(out, "loader", format!("{}: {}", f.loader.state, f.loader.text))?;
    lines(
        out,
        "manifests",
        f.manifests.iter().map(|m| format!("{}  {}: {}", m.path, m.state.state, m.state.text)),
    )?;
    lines(out, "layers", f.layers.iter().cloned())?;
    if !f.layers.is_empty() {
        let kept =
            if f.layers_kept { "implicit ones may load" } else { "implicit ones are kept out of the worker" };
        line(out, "", format!("({kept})"))?;
    }
    lines(out, "variables", f.variables.iter().map(|(name, value)| format!("{name}={value}")))?;
    lines(out, "render nodes", f.render_nodes.iter().map(super::render::Node::line))?;
    if f.devices.is_empty() {
        line(out, "devices", "none")?;
    }
    for found in &f.devices {
        device(found, out)?;
    }
    lines(
        out,
        "verdicts",
        f.verdicts.iter().map(|v| {
            format!("{}: {}", v.about.join(", "), v.cause.as_deref().unwrap_or("being tried at this moment"))
        }),
    )?;
    if f.cleared > 0 {
        line(out, "", format!("{} forgotten", f.cleared))?;
    } else if !f.verdicts.is_empty() {
        line(out, "", "(twinband vkinfo --retry forgets them)")?;
    }
    lines(
        out,
        "calibrations",
        f.calibrations.iter().map(|c| format!("{}: {}", c.about.join(", "), c.value)),
    )?;
    if !f.advice.is_empty() {
        lines(out, "advice", f.advice.iter().cloned())?;
    }
    Ok(())
}

fn device(d: &Found, out: &mut impl Write) -> io::Result<()> {
    line(out, &format!("device {}", d.number), d.name.clone())?;
    line(out, "  uuid", d.uuid.clone())?;
    let memory = report::bytes(d.memory);
    line(out, "  kind", format!("{}, {memory} of memory, Vulkan {}, {}", d.kind, d.api, d.driver))?;
    line(out, "  reached by", d.reached_by.join(", "))?;
    let limits: Vec<String> = d.limits.iter().map(|(name, value)| format!("{name} {value}")).collect();
    line(out, "  limits", limits.join(", "))?;
    lines(out, "  formats", (!d.formats.is_empty()).then(|| d.formats.join(", ")))?;
    if let Some(unfit) = &d.unfit {
        line(out, "  unfit", unfit.clone())?;
    }
    lines(out, "  self-test", d.self_test.iter().map(trial))
}

fn trial(t: &Trial) -> String {
    let mut text = t.format.clone();
    if t.rows > 0 {
        text += &format!(" {} x {}", t.rows, t.cols);
    }
    match t.bits_equal {
        Some(true) => text += ": bits equal",
        Some(false) => text += &format!(": WRONG, {} products differ from the CPU's", t.wrong),
        None => {}
    }
    if let Some(gbps) = t.gbps {
        text += &format!(", {gbps:.2} GB/s");
    }
    if let (Some(device), Some(job)) = (t.device_us, t.job_us) {
        text += &format!(", {device:.0} us on the device, {job:.0} us in all");
    }
    if let (Some(p50), Some(p99)) = (t.empty_us, t.empty_us_p99) {
        text += &format!(", empty round trip {p50:.0} us (p99 {p99:.0} us)");
    }
    if let Some(trouble) = &t.trouble {
        text += &format!(": FAILED, {trouble}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_in_words() {
        let right = Trial {
            format: "Q4_0".to_owned(),
            rows: 64,
            cols: 32,
            bits_equal: Some(true),
            gbps: Some(1.5),
            device_us: Some(20.0),
            job_us: Some(30.0),
            empty_us: Some(8.0),
            empty_us_p99: Some(9.0),
            ..Trial::default()
        };
        assert_eq!(
            trial(&right),
            "Q4_0 64 x 32: bits equal, 1.50 GB/s, 20 us on the device, 30 us in all, empty round trip 8 us (p99 9 us)"
        );
        let wrong = Trial { bits_equal: Some(false), wrong: 3, rows: 64, cols: 32, ..Trial::default() };
        assert!(trial(&wrong).contains("WRONG, 3 products"));
        let failed =
            Trial { format: "Q8_0".to_owned(), trouble: Some("gone".to_owned()), ..Trial::default() };
        assert_eq!(trial(&failed), "Q8_0: FAILED, gone");
    }
}
