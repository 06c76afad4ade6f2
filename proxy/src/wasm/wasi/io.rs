//! Streams of WASI: stdin is at its end, stdout and stderr go to the plugin's log. Timers are refused.

use wasmtime::component::{ComponentType, Lift, Linker, LinkerInstance, Lower, Resource, ResourceType};

use super::{Refused, Store};
use crate::wasm::host_state::HostState;
use crate::wasm::reads::ReuseObstacle;
use crate::wasm::stdio::Stream;

/// Maximum number of handles of a guest. A standard library takes three streams, once; each handle takes a place in a table of the host.
const MAX_HANDLES: u32 = 64;
/// Bytes that a guest may write at once, if it asks.
const WRITE_PERMIT: u64 = 4096;

/// A point in time of `wasi:clocks/wall-clock`.
#[derive(Debug, Clone, Copy, ComponentType, Lift, Lower)]
#[component(record)]
pub(super) struct Datetime {
    pub(super) seconds: u64,
    pub(super) nanoseconds: u32,
}

/// `wasi:io/streams.stream-error`. The streams never fail; they are at their end.
#[derive(ComponentType, Lower)]
#[component(variant)]
enum StreamError {
    #[component(name = "last-operation-failed")]
    #[expect(dead_code, reason = "a variant of the interface has to be there")]
    LastOperationFailed(Resource<IoError>),
    #[component(name = "closed")]
    Closed,
}

struct IoError;
struct Pollable;
struct InputStream;
struct OutputStream;
struct TerminalInput;
struct TerminalOutput;

/// Handle numbers of the two output streams.
const STDOUT: u32 = 1;
const STDERR: u32 = 2;

pub(super) fn add_to_linker(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    add_error_and_poll(linker)?;
    let mut streams = linker.instance("wasi:io/streams@0.2.0")?;
    add_resource::<IoError>(&mut streams, "error")?;
    add_resource::<Pollable>(&mut streams, "pollable")?;
    add_input(&mut streams)?;
    add_output(&mut streams)?;
    add_stdio(linker)?;
    add_terminals(linker)
}

/// Refuses timers: a guest that waits for one would hold a thread that serves others.
pub(super) fn add_waits(monotonic: &mut LinkerInstance<'_, HostState>) -> wasmtime::Result<()> {
    add_resource::<Pollable>(monotonic, "pollable")?;
    monotonic.func_wrap("subscribe-instant", |_: Store<'_>, (_,): (u64,)| {
        no_wait::<Resource<Pollable>>()
    })?;
    monotonic.func_wrap("subscribe-duration", |_: Store<'_>, (_,): (u64,)| {
        no_wait::<Resource<Pollable>>()
    })
}

fn no_wait<T>() -> wasmtime::Result<(T,)> {
    Err(Refused::Wait.into())
}

/// Defines a resource type whose handles are counted.
fn add_resource<T: 'static>(instance: &mut LinkerInstance<'_, HostState>, name: &str) -> wasmtime::Result<()> {
    instance.resource(name, ResourceType::host::<T>(), |mut store, _| {
        let handles = &mut store.data_mut().wasi_handles;
        *handles = handles.saturating_sub(1);
        Ok(())
    })
}

/// Creates a handle for the guest.
fn new_handle<T: 'static>(mut store: Store<'_>, number: u32) -> wasmtime::Result<(Resource<T>,)> {
    let handles = &mut store.data_mut().wasi_handles;
    if *handles >= MAX_HANDLES {
        return Err(Refused::TooManyHandles(*handles).into());
    }
    *handles += 1;
    Ok((Resource::new_own(number),))
}

fn add_error_and_poll(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    let mut error = linker.instance("wasi:io/error@0.2.0")?;
    add_resource::<IoError>(&mut error, "error")?;
    error.func_wrap(
        "[method]error.to-debug-string",
        |_: Store<'_>, (_,): (Resource<IoError>,)| Ok((String::new(),)),
    )?;
    let mut poll = linker.instance("wasi:io/poll@0.2.0")?;
    add_resource::<Pollable>(&mut poll, "pollable")?;
    // The C library under a guest waits for its own streams before it writes. They are always ready; other sources, such as timers, return
    // no pollable.
    poll.func_wrap("[method]pollable.ready", |_: Store<'_>, (_,): (Resource<Pollable>,)| {
        Ok((true,))
    })?;
    poll.func_wrap("[method]pollable.block", |_: Store<'_>, (_,): (Resource<Pollable>,)| {
        Ok(())
    })?;
    poll.func_wrap("poll", |_: Store<'_>, (polled,): (Vec<Resource<Pollable>>,)| {
        Ok(((0_u32..).take(polled.len()).collect::<Vec<u32>>(),))
    })
}

fn add_input(streams: &mut LinkerInstance<'_, HostState>) -> wasmtime::Result<()> {
    add_resource::<InputStream>(streams, "input-stream")?;
    for name in ["[method]input-stream.read", "[method]input-stream.blocking-read"] {
        streams.func_wrap(name, |_: Store<'_>, (_, _): (Resource<InputStream>, u64)| {
            Ok((Err::<Vec<u8>, _>(StreamError::Closed),))
        })?;
    }
    for name in ["[method]input-stream.skip", "[method]input-stream.blocking-skip"] {
        streams.func_wrap(name, |_: Store<'_>, (_, _): (Resource<InputStream>, u64)| {
            Ok((Err::<u64, _>(StreamError::Closed),))
        })?;
    }
    streams.func_wrap(
        "[method]input-stream.subscribe",
        |store: Store<'_>, (_,): (Resource<InputStream>,)| new_handle::<Pollable>(store, 0),
    )
}

fn add_output(streams: &mut LinkerInstance<'_, HostState>) -> wasmtime::Result<()> {
    type Done = (Result<(), StreamError>,);
    add_resource::<OutputStream>(streams, "output-stream")?;
    streams.func_wrap(
        "[method]output-stream.check-write",
        |_: Store<'_>, (_,): (Resource<OutputStream>,)| Ok((Ok::<_, StreamError>(WRITE_PERMIT),)),
    )?;
    for name in [
        "[method]output-stream.write",
        "[method]output-stream.blocking-write-and-flush",
    ] {
        streams.func_wrap(
            name,
            |mut store: Store<'_>, (stream, bytes): (Resource<OutputStream>, Vec<u8>)| {
                let stream = if stream.rep() == STDERR {
                    Stream::Stderr
                } else {
                    Stream::Stdout
                };
                let host = store.data_mut();
                host.end_trace(ReuseObstacle::Write);
                host.stdio.write(stream, &bytes);
                Ok::<Done, _>((Ok(()),))
            },
        )?;
    }
    for name in ["[method]output-stream.flush", "[method]output-stream.blocking-flush"] {
        streams.func_wrap(name, |_: Store<'_>, (_,): (Resource<OutputStream>,)| {
            Ok::<Done, _>((Ok(()),))
        })?;
    }
    for name in [
        "[method]output-stream.write-zeroes",
        "[method]output-stream.blocking-write-zeroes-and-flush",
    ] {
        streams.func_wrap(name, |_: Store<'_>, (_, _): (Resource<OutputStream>, u64)| {
            Ok::<Done, _>((Ok(()),))
        })?;
    }
    for name in ["[method]output-stream.splice", "[method]output-stream.blocking-splice"] {
        type Spliced = (Resource<OutputStream>, Resource<InputStream>, u64);
        streams.func_wrap(name, |_: Store<'_>, (_, _, _): Spliced| {
            Ok((Err::<u64, _>(StreamError::Closed),))
        })?;
    }
    streams.func_wrap(
        "[method]output-stream.subscribe",
        |store: Store<'_>, (_,): (Resource<OutputStream>,)| new_handle::<Pollable>(store, 0),
    )
}

fn add_stdio(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    let mut stdin = linker.instance("wasi:cli/stdin@0.2.0")?;
    add_resource::<InputStream>(&mut stdin, "input-stream")?;
    stdin.func_wrap("get-stdin", |store: Store<'_>, (): ()| {
        new_handle::<InputStream>(store, 0)
    })?;
    let mut stdout = linker.instance("wasi:cli/stdout@0.2.0")?;
    add_resource::<OutputStream>(&mut stdout, "output-stream")?;
    stdout.func_wrap("get-stdout", |store: Store<'_>, (): ()| {
        new_handle::<OutputStream>(store, STDOUT)
    })?;
    let mut stderr = linker.instance("wasi:cli/stderr@0.2.0")?;
    add_resource::<OutputStream>(&mut stderr, "output-stream")?;
    stderr.func_wrap("get-stderr", |store: Store<'_>, (): ()| {
        new_handle::<OutputStream>(store, STDERR)
    })
}

/// Reports that no stream is a terminal.
fn add_terminals(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    add_resource::<TerminalInput>(&mut linker.instance("wasi:cli/terminal-input@0.2.0")?, "terminal-input")?;
    add_resource::<TerminalOutput>(
        &mut linker.instance("wasi:cli/terminal-output@0.2.0")?,
        "terminal-output",
    )?;
    let mut stdin = linker.instance("wasi:cli/terminal-stdin@0.2.0")?;
    add_resource::<TerminalInput>(&mut stdin, "terminal-input")?;
    stdin.func_wrap("get-terminal-stdin", |_: Store<'_>, (): ()| {
        Ok((None::<Resource<TerminalInput>>,))
    })?;
    for (interface, function) in [
        ("wasi:cli/terminal-stdout@0.2.0", "get-terminal-stdout"),
        ("wasi:cli/terminal-stderr@0.2.0", "get-terminal-stderr"),
    ] {
        let mut instance = linker.instance(interface)?;
        add_resource::<TerminalOutput>(&mut instance, "terminal-output")?;
        instance.func_wrap(function, |_: Store<'_>, (): ()| Ok((None::<Resource<TerminalOutput>>,)))?;
    }
    Ok(())
}
