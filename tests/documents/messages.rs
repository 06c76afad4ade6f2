//! Text of the programs, as a reviewer reads it: `--help`, and errors of chains that are not loaded. CONTRIBUTING.md says how to accept
//! changed text.

use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Command, CommandFactory as _};
use ctrlmesh_contract::{Digest, Error as DocumentError, Mistakes};
use ctrlmesh_proxy::chain::Error;
use ctrlmesh_proxy::wasm::{Error as PluginError, Fault, Origin, OverLimit, Phase};

/// An example of each variant of an enum. It does not compile while a variant has none.
macro_rules! examples_of {
    ($enum:ident { $($variant:ident $fields:tt,)+ }) => {{
        let _ = |value: &$enum| match value {
            $($enum::$variant { .. } => (),)+
        };
        vec![$($enum::$variant $fields),+]
    }};
}

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

/// Errors of documents, signatures and keys.
fn document_errors() -> Vec<DocumentError> {
    let mut mistakes = Mistakes::default();
    mistakes.add("entries[0].name", "is missing");
    mistakes.add("generation", "is missing");
    examples_of!(DocumentError {
        TooLarge { bytes: 2 << 20, limit: 1 << 20 },
        Empty {},
        NotText {},
        Syntax { format: "YAML", problem: "unclosed bracket".to_owned() },
        SeveralDocuments { count: 2 },
        Mistakes { mistakes },
        Digest { text: "\"sha256:00\"".to_owned() },
        PublicKey { problem: "it is not base64" },
        PrivateKey {},
        Random {},
        NotSigned {},
        SignatureForm { problem: "it is not base64" },
        SignatureMismatch {},
    })
}

#[test]
fn messages_of_documents_signatures_and_keys_match_snapshot() {
    let messages: Vec<String> = document_errors().iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(messages.join("\n"));
}

/// Reasons why a plugin is not loaded. The bytes are those of `a`.
fn plugin_errors() -> Vec<PluginError> {
    let digest = || Digest::of(b"a").to_string();
    examples_of!(PluginError {
        Engine("no random numbers".to_owned()),
        Empty {},
        TooLarge { bytes: 64 << 20 },
        NotWasm { digest: digest() },
        CoreModule { digest: digest() },
        WrongWorld { digest: digest(), missing: "it has no export configure".to_owned() },
        Version { digest: digest(), version: "0.9.0".to_owned() },
        Import { digest: digest(), import: "wasi:sockets/tcp@0.2.0".to_owned() },
        Compile { digest: digest(), detail: "type mismatch".to_owned() },
        CompileDeadline { digest: digest(), limit: Duration::from_secs(60) },
        CompileMemory { digest: digest(), limit_bytes: 32 << 20, is_contended: false },
        CodeMemory { digest: digest(), over: over_limit() },
        CacheDirectory { path: PathBuf::from("/cache"), reason: "it is not a directory".to_owned() },
        Io { path: PathBuf::from("/cache/a"), source: io::ErrorKind::PermissionDenied.into() },
    })
}

/// Reasons why a call of a plugin fails.
fn faults(phase: Phase) -> Vec<Fault> {
    let origin = || {
        Box::new(Origin {
            digest: Digest::of(b"a").to_string(),
            entry: "shard-selector/a".to_owned(),
            phase,
        })
    };
    examples_of!(Fault {
        Settings { origin: origin(), message: "limits[0].selector is empty".to_owned() },
        Trap { origin: origin(), detail: "wasm `unreachable` instruction executed".to_owned() },
        Deadline { origin: origin(), limit: Duration::from_millis(50) },
        Memory { origin: origin(), limit_bytes: 16 << 20 },
        ProcessMemory { origin: origin(), over: over_limit() },
        Invalid { origin: origin(), what: "a match rule has no verbs".to_owned() },
        Impure {
            origin: origin(),
            contradiction: "it decided on a refusal before and to let the request pass now".to_owned(),
        },
    })
}

/// Only a verdict on a request can be impure, and only settings are refused by the plugin itself.
#[test]
fn messages_of_failed_calls_match_snapshot() {
    let faults = faults(Phase::OnRequest).into_iter();
    let messages: Vec<String> = faults
        .filter(|fault| !matches!(fault, Fault::Settings { .. }))
        .map(|fault| format!("{}: {fault}", fault.kind()))
        .collect();
    insta::assert_snapshot!(messages.join("\n"));
}

const fn over_limit() -> OverLimit {
    OverLimit {
        plugin_limit_bytes: 64 << 20,
        limit_bytes: 128 << 20,
    }
}

/// Reasons why a chain is not loaded, with one source for each that has several.
fn chain_errors() -> Vec<Error> {
    let directory = || PathBuf::from("/etc/chain");
    let path = || directory().join("chain.yaml");
    let entry = || "shard-selector/a".to_owned();
    let (digest, other) = (Digest::of(b"a"), Digest::of(b"b"));
    examples_of!(Error {
        NoDocument { directory: directory() },
        Io { path: path(), source: io::ErrorKind::PermissionDenied.into() },
        TooLarge { path: path(), limit: 1 << 20 },
        Changing { directory: directory() },
        Document(DocumentError::NotSigned),
        Namespace { document: "a".to_owned(), pod: "b".to_owned() },
        Older { generation: 3, in_force: 4 },
        SameGeneration { generation: 4 },
        Labels { path: directory().join("labels"), problem: "line 2 has no equals sign".to_owned() },
        TooManyEntries { selected: 65 },
        PluginMissing { entry: entry(), digest },
        PluginDigest { entry: entry(), path: directory().join("plugin.wasm"), expected: digest, found: other },
        PluginPacked { path: directory().join("plugin.wasm.zst"), problem: "unexpected end".to_owned() },
        InitialMemory { needed_bytes: 100 << 20, workers: 2, over: over_limit() },
        Prepare("a worker has ended".to_owned()),
        Task("task panicked".to_owned()),
        Plugin { entry: entry(), source: PluginError::Empty },
        Configure { entry: entry(), source: faults(Phase::Configure).swap_remove(0) },
    })
}

#[test]
fn messages_of_chains_that_are_not_loaded_match_snapshot() {
    let entry = || "shard-selector/a".to_owned();
    let documents = [
        DocumentError::NotText,
        DocumentError::SignatureForm {
            problem: "it is not base64",
        },
        DocumentError::SignatureMismatch,
    ];
    let plugins = plugin_errors()
        .into_iter()
        .map(|source| Error::Plugin { entry: entry(), source });
    let faults = faults(Phase::Configure)
        .into_iter()
        .filter(|fault| !matches!(fault, Fault::Impure { .. }))
        .map(|source| Error::Configure { entry: entry(), source });
    // Each of their sources follows.
    let is_of_plugin = |error: &Error| matches!(error, Error::Plugin { .. } | Error::Configure { .. });
    let messages: Vec<String> = chain_errors()
        .into_iter()
        .filter(|error| !is_of_plugin(error))
        .chain(documents.map(Error::Document))
        .chain(plugins)
        .chain(faults)
        .map(|error| format!("{}: {error}", error.reason()))
        .collect();
    insta::assert_snapshot!(messages.join("\n"));
}
