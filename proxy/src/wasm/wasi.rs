//! The WASI 0.2 that a guest gets: the interfaces that a language's standard library needs to start, and no access behind them.
//!
//! There are no arguments, environment, files or sockets, and stdin is empty. Printed output goes to the plugin's log; clocks and random
//! numbers are the host's; `exit` is a trap; waiting is refused, because a plugin has milliseconds. Why not `wasmtime-wasi`:
//! docs/adr/0004-wasi-deny-all.md.

use aws_lc_rs::rand;
use wasmtime::component::Linker;
use wasmtime::{AsContextMut, StoreContextMut};

use super::host_state::HostState;
use super::reads::ReuseObstacle;

mod io;

/// Maximum number of random bytes in one call: enough for seeds and keys.
const MAX_RANDOM_BYTES: u64 = 64 * 1024;

/// A call that is forbidden for plugins; it traps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("it called exit (status {0}); return an error from configure, or a verdict, instead")]
    Exit(u8),
    #[error("it tried to wait, and a plugin has only milliseconds; use the delay of a verdict instead")]
    Wait,
    #[error("it holds {0} handles of WASI")]
    TooManyHandles(u32),
    #[error("it asked for {0} random bytes at once, at most {MAX_RANDOM_BYTES} are given")]
    TooManyRandomBytes(u64),
    #[error("the host has no random numbers")]
    NoRandomNumbers,
}

type Store<'a> = StoreContextMut<'a, HostState>;

/// Adds the interfaces above to the linker.
pub(crate) fn add_to_linker(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    io::add_to_linker(linker)?;
    add_cli(linker)?;
    add_clocks(linker)?;
    add_random(linker)
}

fn add_cli(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    let mut environment = linker.instance("wasi:cli/environment@0.2.0")?;
    environment.func_wrap("get-environment", |_: Store<'_>, (): ()| {
        Ok((Vec::<(String, String)>::new(),))
    })?;
    environment.func_wrap("get-arguments", |_: Store<'_>, (): ()| Ok((Vec::<String>::new(),)))?;
    environment.func_wrap("initial-cwd", |_: Store<'_>, (): ()| Ok((None::<String>,)))?;

    let mut exit = linker.instance("wasi:cli/exit@0.2.0")?;
    exit.func_wrap("exit", |_: Store<'_>, (status,): (Result<(), ()>,)| {
        Err::<(), _>(Refused::Exit(u8::from(status.is_err())).into())
    })?;
    exit.func_wrap("exit-with-code", |_: Store<'_>, (code,): (u8,)| {
        Err::<(), _>(Refused::Exit(code).into())
    })
}

fn add_clocks(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    let mut monotonic = linker.instance("wasi:clocks/monotonic-clock@0.2.0")?;
    monotonic.func_wrap("now", |mut store: Store<'_>, (): ()| {
        Ok((store.data_mut().read_clock().monotonic_ns(),))
    })?;
    monotonic.func_wrap("resolution", |_: Store<'_>, (): ()| Ok((1_u64,)))?;
    io::add_waits(&mut monotonic)?;

    let mut wall = linker.instance("wasi:clocks/wall-clock@0.2.0")?;
    wall.func_wrap("now", |mut store: Store<'_>, (): ()| {
        let now = store.data_mut().read_clock().since_epoch();
        Ok((io::Datetime {
            seconds: now.as_secs(),
            nanoseconds: now.subsec_nanos(),
        },))
    })?;
    wall.func_wrap("resolution", |_: Store<'_>, (): ()| {
        Ok((io::Datetime {
            seconds: 0,
            nanoseconds: 1,
        },))
    })
}

fn add_random(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    let mut random = linker.instance("wasi:random/random@0.2.0")?;
    random.func_wrap("get-random-bytes", |store: Store<'_>, (count,): (u64,)| {
        Ok((random_bytes(store, count)?,))
    })?;
    random.func_wrap("get-random-u64", |store: Store<'_>, (): ()| Ok((random_u64(store)?,)))?;

    let mut insecure = linker.instance("wasi:random/insecure@0.2.0")?;
    insecure.func_wrap("get-insecure-random-bytes", |store: Store<'_>, (count,): (u64,)| {
        Ok((random_bytes(store, count)?,))
    })?;
    insecure.func_wrap("get-insecure-random-u64", |store: Store<'_>, (): ()| {
        Ok((random_u64(store)?,))
    })?;

    // Rust's HashMap takes its keys from here.
    let mut seed = linker.instance("wasi:random/insecure-seed@0.2.0")?;
    seed.func_wrap("insecure-seed", |mut store: Store<'_>, (): ()| {
        Ok(((random_u64(store.as_context_mut())?, random_u64(store.as_context_mut())?),))
    })
}

fn random_bytes(mut store: Store<'_>, count: u64) -> wasmtime::Result<Vec<u8>> {
    if count > MAX_RANDOM_BYTES {
        return Err(Refused::TooManyRandomBytes(count).into());
    }
    store.data_mut().end_trace(ReuseObstacle::Random);
    let mut bytes = vec![0; count as usize];
    rand::fill(&mut bytes).map_err(|_| Refused::NoRandomNumbers)?;
    Ok(bytes)
}

fn random_u64(mut store: Store<'_>) -> wasmtime::Result<u64> {
    store.data_mut().end_trace(ReuseObstacle::Random);
    let mut bytes = [0; 8];
    rand::fill(&mut bytes).map_err(|_| Refused::NoRandomNumbers)?;
    Ok(u64::from_ne_bytes(bytes))
}
