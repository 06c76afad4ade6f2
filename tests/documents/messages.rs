//! Text of the programs, as a reviewer reads it: `--help`, and errors of chains that are not loaded. CONTRIBUTING.md says how to accept
//! changed text.

use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Command, CommandFactory as _};
use ctrlmesh_contract::Digest;
use ctrlmesh_proxy::chain::Error;
use ctrlmesh_proxy::wasm::{self, Fault, Origin, OverLimit, Phase};

/// `--help` of a program, then of each subcommand that it shows.
fn help(command: Command) -> String {
    let mut command = without_environment(command).term_width(100);
    command.build();
    let mut text = String::new();
    add_help(&mut text, &mut command);
    text
}

/// Values of variables differ from machine to machine.
fn without_environment(command: Command) -> Command {
    let command = command.mut_args(|argument| argument.hide_env_values(true));
    command.mut_subcommands(without_environment)
}

fn add_help(text: &mut String, command: &mut Command) {
    let name = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    writeln!(text, "$ {name} --help\n{}\n", lines.join("\n").trim_end()).unwrap();
    for subcommand in command.get_subcommands_mut() {
        if !subcommand.is_hide_set() && subcommand.get_name() != "help" {
            add_help(text, subcommand);
        }
    }
}

#[test]
fn help_of_sidecar_matches_snapshot() {
    insta::assert_snapshot!(help(ctrlmesh_proxy::config::Cli::command()));
}

#[test]
fn help_of_manager_matches_snapshot() {
    insta::assert_snapshot!(help(ctrlmesh_manager::args::Args::command()));
}

#[test]
fn help_of_command_matches_snapshot() {
    insta::assert_snapshot!(help(ctrlmesh_cli::command()));
}

/// Reasons why a plugin is not loaded. The bytes are those of `a`.
fn plugin_errors() -> Vec<wasm::Error> {
    let digest = || Digest::of(b"a").to_string();
    vec![
        wasm::Error::Empty,
        wasm::Error::TooLarge { bytes: 64 << 20 },
        wasm::Error::NotWasm { digest: digest() },
        wasm::Error::CoreModule { digest: digest() },
        wasm::Error::WrongWorld {
            digest: digest(),
            missing: "it has no export configure".to_owned(),
        },
        wasm::Error::Version {
            digest: digest(),
            version: "0.9.0".to_owned(),
        },
        wasm::Error::Import {
            digest: digest(),
            import: "wasi:sockets/tcp@0.2.0".to_owned(),
        },
        wasm::Error::Compile {
            digest: digest(),
            detail: "type mismatch".to_owned(),
        },
        wasm::Error::CompileDeadline {
            digest: digest(),
            limit: Duration::from_secs(60),
        },
        wasm::Error::CompileMemory {
            digest: digest(),
            limit_bytes: 32 << 20,
            is_contended: false,
        },
        wasm::Error::CodeMemory {
            digest: digest(),
            over: over_limit(),
        },
        wasm::Error::CacheDirectory {
            path: PathBuf::from("/cache"),
            reason: "it is not a directory".to_owned(),
        },
        wasm::Error::Io {
            path: PathBuf::from("/cache/a"),
            source: io::ErrorKind::PermissionDenied.into(),
        },
    ]
}

/// Reasons why a plugin does not accept its settings, or fails while it reads them.
fn configure_faults() -> Vec<Fault> {
    let origin = || {
        Box::new(Origin {
            digest: Digest::of(b"a").to_string(),
            entry: "shard-selector/a".to_owned(),
            phase: Phase::Configure,
        })
    };
    vec![
        Fault::Settings {
            origin: origin(),
            message: "limits[0].selector is empty".to_owned(),
        },
        Fault::Trap {
            origin: origin(),
            detail: "wasm `unreachable` instruction executed".to_owned(),
        },
        Fault::Deadline {
            origin: origin(),
            limit: Duration::from_millis(50),
        },
        Fault::Memory {
            origin: origin(),
            limit_bytes: 16 << 20,
        },
        Fault::ProcessMemory {
            origin: origin(),
            over: over_limit(),
        },
        Fault::Invalid {
            origin: origin(),
            what: "a match rule has no verbs".to_owned(),
        },
    ]
}

const fn over_limit() -> OverLimit {
    OverLimit {
        plugin_limit_bytes: 64 << 20,
        limit_bytes: 128 << 20,
    }
}

#[test]
fn messages_of_chains_that_are_not_loaded_match_snapshot() {
    let directory = || PathBuf::from("/etc/chain");
    let path = || directory().join("chain.yaml");
    let entry = || "shard-selector/a".to_owned();
    let (digest, other) = (Digest::of(b"a"), Digest::of(b"b"));
    let errors = [
        Error::NoDocument { directory: directory() },
        Error::Io {
            path: path(),
            source: io::ErrorKind::PermissionDenied.into(),
        },
        Error::TooLarge {
            path: path(),
            limit: 1 << 20,
        },
        Error::Changing { directory: directory() },
        Error::Document(ctrlmesh_contract::Error::NotSigned),
        Error::Document(ctrlmesh_contract::Error::SignatureMismatch),
        Error::Namespace {
            document: "a".to_owned(),
            pod: "b".to_owned(),
        },
        Error::Older {
            generation: 3,
            in_force: 4,
        },
        Error::SameGeneration { generation: 4 },
        Error::Labels {
            path: directory().join("labels"),
            problem: "line 2 has no equals sign".to_owned(),
        },
        Error::TooManyEntries { selected: 65 },
        Error::PluginMissing { entry: entry(), digest },
        Error::PluginDigest {
            entry: entry(),
            path: directory().join("plugin.wasm"),
            expected: digest,
            found: other,
        },
        Error::PluginPacked {
            path: directory().join("plugin.wasm.zst"),
            problem: "unexpected end".to_owned(),
        },
        Error::InitialMemory {
            needed_bytes: 100 << 20,
            workers: 2,
            over: over_limit(),
        },
        Error::Prepare("a worker has ended".to_owned()),
        Error::Task("task panicked".to_owned()),
    ];
    let plugins = plugin_errors()
        .into_iter()
        .map(|source| Error::Plugin { entry: entry(), source });
    let faults = configure_faults()
        .into_iter()
        .map(|source| Error::Configure { entry: entry(), source });
    let messages: Vec<String> = errors
        .into_iter()
        .chain(plugins)
        .chain(faults)
        .map(|error| format!("{}: {error}", error.reason()))
        .collect();
    insta::assert_snapshot!(messages.join("\n"));
}
