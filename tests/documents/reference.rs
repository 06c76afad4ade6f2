//! docs/reference: the flags and metrics that the programs have. `make docs` writes these pages; here they are compared.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use anyhow::Context as _;
use clap::{Arg, Command, CommandFactory as _};
use ctrlmesh_tests::{EntrySpec, TestEnv, guest_entry, repository_root, shard_entry, wait_until};
use http::Method;
use serde_json::json;

/// If it is set, the pages are written.
const WRITE: &str = "CTRLMESH_WRITE_REFERENCE";

/// Compares a page with what it should be, or writes it.
fn compare_page(name: &str, text: &str) {
    let path = repository_root().join("docs/reference").join(name);
    if std::env::var_os(WRITE).is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        return;
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    for (number, (line, expected)) in written.lines().zip(text.lines()).enumerate() {
        assert_eq!(line, expected, "{name}:{}; run `make docs`", number + 1);
    }
    assert!(written == text, "{} is not up to date; run `make docs`", path.display());
}

#[test]
fn flags_reference_is_up_to_date() {
    let mut text = "# Flags\n\n<!-- Written by `make docs`. -->\n\n\
        Flags and environment variables of all programs that users run, as `--help` prints them. A flag wins over its \
        variable.\n"
        .to_owned();
    for (command, about) in [
        (
            ctrlmesh_proxy::config::Cli::command(),
            "[Operating the sidecar](../operating.md) explains them.",
        ),
        (
            ctrlmesh_manager::args::Args::command(),
            "[Operating the manager](../manager.md) explains them.",
        ),
        (ctrlmesh_cli::command(), "`ctrlmesh` runs on your own machine."),
    ] {
        let mut command = command;
        command.build();
        describe(&mut text, &command, 2, about);
    }
    compare_page("flags.md", &text);
}

/// A section for a command, and one for each of its subcommands.
fn describe(text: &mut String, command: &Command, level: usize, about: &str) {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    writeln!(text, "\n{} `{name}`\n", "#".repeat(level)).unwrap();
    if let Some(help) = command.get_about() {
        writeln!(
            text,
            "{}{}",
            paragraph(&help.to_string()),
            if about.is_empty() {
                String::new()
            } else {
                format!(" {about}")
            }
        )
        .unwrap();
    }
    let usage = command.clone().render_usage().to_string();
    let usage: Vec<&str> = usage.trim_start_matches("Usage: ").lines().map(str::trim).collect();
    writeln!(text, "\n```\n{}\n```", usage.join("\n")).unwrap();
    let is_shown = |arg: &&Arg| !arg.is_hide_set() && !matches!(arg.get_id().as_str(), "help" | "version");
    let (flags, others): (Vec<&Arg>, Vec<&Arg>) = command
        .get_arguments()
        .filter(is_shown)
        .partition(|arg| arg.get_long().is_some());
    write_arguments(text, &flags, &others);
    let is_listed = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
    for subcommand in command.get_subcommands().filter(is_listed) {
        describe(text, subcommand, level + 1, "");
    }
}

/// A table of names and values, and a list with what they mean.
fn write_arguments(text: &mut String, flags: &[&Arg], others: &[&Arg]) {
    if !flags.is_empty() {
        writeln!(text, "\n| flag | environment variable | default |\n|---|---|---|").unwrap();
        for flag in flags {
            let variable = flag.get_env().map(|name| format!("`{}`", name.to_string_lossy()));
            writeln!(
                text,
                "| `{}` | {} | {} |",
                signature(flag).replace('|', "\\|"),
                variable.unwrap_or_default(),
                default(flag)
            )
            .unwrap();
        }
    }
    if !flags.is_empty() || !others.is_empty() {
        text.push('\n');
    }
    for arg in others.iter().chain(flags) {
        let help = arg
            .get_long_help()
            .or(arg.get_help())
            .map(ToString::to_string)
            .unwrap_or_default();
        let label = arg
            .get_long()
            .map_or_else(|| signature(arg), |long| format!("--{long}"));
        writeln!(text, "- `{label}`: {}{}", paragraph(&help), value_choices(arg)).unwrap();
    }
}

/// `--log-format <FORMAT>`, or `<NAME>` where there is no flag.
fn signature(arg: &Arg) -> String {
    let flag = arg.get_long().map(|long| format!("--{long}"));
    let takes_value = arg.get_action().takes_values();
    let named = arg
        .get_value_names()
        .map(|names| names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
    let value = takes_value.then(|| format!("<{}>", named.unwrap_or_else(|| arg.get_id().as_str().to_uppercase())));
    flag.into_iter().chain(value).collect::<Vec<_>>().join(" ")
}

fn default(arg: &Arg) -> String {
    if arg.is_hide_default_value_set() || !arg.get_action().takes_values() {
        return String::new();
    }
    let values = arg.get_default_values().iter().map(|value| value.to_string_lossy());
    let values = values.filter(|value| !value.is_empty()).collect::<Vec<_>>().join(",");
    if values.is_empty() {
        values
    } else {
        format!("`{values}`")
    }
}

/// The values that a flag takes, if they are few.
fn value_choices(arg: &Arg) -> String {
    let values = arg.get_possible_values();
    if values.is_empty() || !arg.get_action().takes_values() {
        return String::new();
    }
    let values: Vec<String> = values.iter().map(|value| format!("`{}`", value.get_name())).collect();
    format!(" One of {}.", values.join(", "))
}

/// One line that ends with a full stop, in which nothing but code is markup.
fn paragraph(help: &str) -> String {
    let line = help.split_whitespace().collect::<Vec<_>>().join(" ");
    // Between backticks, a backslash would be shown.
    let parts = line.split('`').enumerate().map(|(index, part)| match index % 2 {
        0 => part.replace('<', "\\<").replace('*', "\\*"),
        _ => part.to_owned(),
    });
    let text = parts.collect::<Vec<_>>().join("`");
    if text.ends_with(['.', '!', '?']) {
        text
    } else {
        format!("{text}.")
    }
}

#[tokio::test]
async fn metrics_reference_is_up_to_date() -> anyhow::Result<()> {
    let sidecar = sidecar_metrics().await?;
    let manager = ctrlmesh_manager::metrics::Metrics::sample().render()?;
    let mut text = "# Metrics\n\n<!-- Written by `make docs`. -->\n\n\
        Metrics that the programs serve at `/metrics`, with their help texts. Histograms have the suffixes `_bucket`, \
        `_sum` and `_count`.\n"
        .to_owned();
    let about = "Port 5441. [Operating the sidecar](../operating.md#metrics) says what to look at. A plugin adds counters \
        `ctrlmesh_plugin_<name>_total` and gauges `ctrlmesh_plugin_<name>` of its own, with the labels `entry` and `label`.";
    write_table(&mut text, "ctrlmesh-proxy", about, &sidecar)?;
    let about = "Port 8080. [Operating the manager](../manager.md#metrics) says what to look at.";
    write_table(&mut text, "ctrlmesh-manager", about, &manager)?;
    compare_page("metrics.md", &text);
    assert_names_are_known(&text);
    Ok(())
}

/// Fails if docs/operating.md names a metric that the reference lacks.
fn assert_names_are_known(reference: &str) {
    let known: Vec<&str> = reference
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    let text = fs::read_to_string(repository_root().join("docs/operating.md")).unwrap();
    let named = text
        .split('`')
        .filter(|code| code.starts_with("ctrlmesh_") && !code.contains(['<', ' ']));
    for code in named {
        let name = code.split('{').next().unwrap_or_default();
        let is_of_a_plugin = name == "ctrlmesh_plugin_refused_total";
        assert!(
            is_of_a_plugin || known.contains(&name),
            "docs/operating.md names {name}, which docs/reference/metrics.md lacks"
        );
    }
}

/// The metrics of a sidecar after events that each of them counts.
async fn sidecar_metrics() -> anyhow::Result<String> {
    let crash = guest_entry("trap", json!({ "in": "on-request", "how": "panic" }));
    let crash = crash
        .with_field("onFailure", "Open".into())
        .with_field("order", 1.into());
    let flags = ["--external-address", "127.0.0.1:0", "--memory-limit", "512Mi"];
    let fence = EntrySpec::new("shard-selector/fence", ctrlmesh_plugins_builtin::SHARD_SELECTOR);
    let pods = json!([{ "apiGroups": [""], "resources": ["pods"] }]);
    let no_ranges = json!({ "key": "namespace", "ranges": [] });
    let fence = fence.with_settings(json!({ "limits": [{ "relateResources": pods, "hashRanges": no_ranges }] }));
    let mut env = TestEnv::start_with(vec![crash.clone(), shard_entry("a"), fence], &flags).await?;
    env.seed_config_maps("default", "b", 1)?;
    let client = env.client();
    let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "b0" } }).to_string();
    let created = client
        .send(Method::POST, "/api/v1/namespaces/default/configmaps", object)
        .await?;
    assert_eq!(created.status, 409);
    let deleted = client
        .send(Method::DELETE, "/api/v1/namespaces/default/pods/p", "")
        .await?;
    assert_eq!(deleted.status, 409);
    env.chain.publish_bytes(b"no chain", vec![crash, shard_entry("a")])?;
    wait_until("everything is counted", || async {
        client.get("/api/v1/configmaps").await?;
        let text = env.sidecar.metrics().await?;
        let counted = |name: &str| text.contains(&format!("\nctrlmesh_{name}_total{{"));
        let names = [
            "plugin_skips",
            "plugin_quarantines",
            "chain_refused",
            "creates_already_exist",
            "objects_refused",
        ];
        Ok(names.into_iter().all(counted))
    })
    .await?;
    env.sidecar.metrics().await
}

/// A metric as its program describes it.
#[derive(Default)]
struct Metric {
    kind: String,
    help: String,
    labels: Vec<String>,
}

/// Reads the text format: descriptions, then samples of each metric.
fn metrics(text: &str) -> anyhow::Result<BTreeMap<String, Metric>> {
    let mut found = BTreeMap::<String, Metric>::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            name.clone_into(&mut current);
            help.clone_into(&mut found.entry(current.clone()).or_default().help);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            kind.clone_into(&mut found.entry(name.to_owned()).or_default().kind);
        } else if let Some((_, rest)) = line.split_once('{') {
            let metric = found.get_mut(&current).context("a sample without a description")?;
            let (labels, _) = rest.split_once("\"} ").with_context(|| line.to_owned())?;
            let names = labels
                .split("\",")
                .filter_map(|pair| Some(pair.split_once('=')?.0.to_owned()));
            metric.labels = names.filter(|name| name != "le").collect();
        }
    }
    Ok(found)
}

fn write_table(text: &mut String, program: &str, about: &str, exposition: &str) -> anyhow::Result<()> {
    writeln!(
        text,
        "\n## `{program}`\n\n{about}\n\n| metric | type | labels | meaning |\n|---|---|---|---|"
    )?;
    for (name, metric) in metrics(exposition)? {
        let suffix = if metric.kind == "counter" { "_total" } else { "" };
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let help = metric.help.trim_end_matches('.');
        writeln!(
            text,
            "| `{name}{suffix}` | {} | {} | {help} |",
            metric.kind,
            labels.join(", ")
        )?;
    }
    Ok(())
}
