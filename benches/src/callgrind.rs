//! Reads what callgrind writes: the instructions of each function itself, without those that it calls.
//!
//! The format: <https://valgrind.org/docs/manual/cl-format.html>. Leaves running callgrind to `valgrind`.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::{Context, ensure};

/// The name of all code that belongs to no file.
const COMPILED_PLUGINS: &str = "compiled plugins (WebAssembly)";

/// The instructions of a thread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Profile {
    /// Instructions by function. Hashes of generic functions and marks of recursion are not part of the names.
    pub(crate) functions: BTreeMap<String, u64>,
}

impl Profile {
    /// # Errors
    /// The text is not of callgrind's format, or counts something else than instructions.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let mut parser = Parser::default();
        for (number, line) in (1..).zip(text.lines()) {
            parser
                .read_line(line)
                .with_context(|| format!("line {number} of callgrind's output: {line}"))?;
        }
        ensure!(parser.counts_instructions, "callgrind's output names no events");
        let mut profile = Self::default();
        for ((object, function), instructions) in parser.costs {
            *profile.functions.entry(plain_name(object, function)).or_default() += instructions;
        }
        Ok(profile)
    }

    /// Instructions of all functions.
    pub(crate) fn total(&self) -> u64 {
        self.functions.values().sum()
    }
}

#[derive(Debug, Default)]
struct Parser<'t> {
    /// Numbers at the beginning of a line of costs that say where it is.
    positions: usize,
    counts_instructions: bool,
    /// Names are written once, and then referred to by their number.
    objects: HashMap<&'t str, &'t str>,
    functions: HashMap<&'t str, &'t str>,
    /// Where the next lines of costs belong.
    object: &'t str,
    function: &'t str,
    /// The next line has the costs of a call, which are those of the called function and of all that it called.
    is_after_call: bool,
    /// By object and function.
    costs: HashMap<(&'t str, &'t str), u64>,
}

impl<'t> Parser<'t> {
    fn read_line(&mut self, line: &'t str) -> anyhow::Result<()> {
        if line.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '+' | '-' | '*')) {
            return self.read_costs(line);
        }
        if let Some(names) = line.strip_prefix("positions:") {
            self.positions = names.split_whitespace().count();
        } else if let Some(names) = line.strip_prefix("events:") {
            self.counts_instructions = names.split_whitespace().next() == Some("Ir");
            ensure!(self.counts_instructions, "the first event is not Ir");
        } else if let Some((key, value)) = line.split_once('=') {
            match key {
                "ob" => self.object = resolve_name(&mut self.objects, value),
                "fn" => self.function = resolve_name(&mut self.functions, value),
                "cob" => _ = resolve_name(&mut self.objects, value),
                "cfn" => _ = resolve_name(&mut self.functions, value),
                "calls" => self.is_after_call = true,
                // Source files, and the head.
                _ => {}
            }
        }
        Ok(())
    }

    fn read_costs(&mut self, line: &str) -> anyhow::Result<()> {
        if std::mem::take(&mut self.is_after_call) {
            return Ok(());
        }
        // Costs at the end of a line that are zero may be left out.
        let Some(instructions) = line.split_whitespace().nth(self.positions) else {
            return Ok(());
        };
        *self.costs.entry((self.object, self.function)).or_default() += instructions.parse::<u64>()?;
        Ok(())
    }
}

/// The name in `(3) name`, which is remembered; in `(3)`, which was seen before; or in `name`, without compression.
fn resolve_name<'t>(names: &mut HashMap<&'t str, &'t str>, text: &'t str) -> &'t str {
    let numbered = text.strip_prefix('(').and_then(|rest| rest.split_once(')'));
    match numbered.filter(|(number, _)| number.bytes().all(|byte| byte.is_ascii_digit())) {
        Some((number, "")) => names.get(number).copied().unwrap_or_default(),
        Some((number, name)) => {
            let name = name.trim_start();
            names.insert(number, name);
            name
        }
        None => text,
    }
}

/// A name that the next build has, too.
fn plain_name(object: &str, function: &str) -> String {
    if function.starts_with("0x") {
        // Without a symbol the name is an address.
        return match Path::new(object).file_name() {
            Some(file) if object != "???" => format!("code of {} without symbols", file.display()),
            _ => COMPILED_PLUGINS.to_owned(),
        };
    }
    without_hash(without_recursion(function)).to_owned()
}

/// `f` of `f'2`, which is `f` when it was called by itself.
fn without_recursion(name: &str) -> &str {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match name.rsplit_once('\'') {
        Some((name, level)) if is_number(level) => name,
        _ => name,
    }
}

/// `f` of `f::h0123456789abcdef`, the hash of the types with which a generic function was compiled, and of the compiler.
fn without_hash(name: &str) -> &str {
    let is_hash = |text: &str| text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match name.rsplit_once("::h") {
        Some((name, hash)) if is_hash(hash) => name,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
# callgrind format
version: 1
creator: callgrind-3.19.0
cmd:  ctrlmesh-proxy --workers 1
part: 1
thread: 4

desc: Timerange: Basic block 0 - 10
positions: line
events: Ir
summary: 1000

ob=(1) /usr/bin/ctrlmesh-proxy
fl=(1) a.rs
fn=(1) request::handle::h0123456789abcdef
16 400
+3 20
cob=(2) /lib/libc.so.6
cfn=(2) memcpy
calls=3 50
* 100
fi=(2) inlined.rs
-2 5

fn=(3) request::handle::hfedcba9876543210'2
1 30
cfn=(1)
calls=1 16
1 425

ob=(2)
fl=(3) memcpy.S
fn=(2)
50 90
* 10

ob=(3) ???
fl=(4) ???
fn=(4) 0x0000000005722e5b
0 300
fn=(5) 0x0000000005722e5c
0 7

ob=(2)
fn=(6) 0x00000000000001
0 2
fn=(7) (below main)
0 1

totals: 865
";

    fn functions(text: &str) -> Vec<(String, u64)> {
        Profile::parse(text).unwrap().functions.into_iter().collect()
    }

    #[test]
    fn self_costs_are_summed_by_plain_name() {
        let expected = [
            ("(below main)", 1),
            ("code of libc.so.6 without symbols", 2),
            (COMPILED_PLUGINS, 307),
            ("memcpy", 100),
            // Its own lines, the inlined one, and those of the other type; not what its calls cost.
            ("request::handle", 455),
        ];
        assert_eq!(
            functions(OUTPUT),
            expected.map(|(name, count)| (name.to_owned(), count))
        );
        assert_eq!(Profile::parse(OUTPUT).unwrap().total(), 865);
    }

    #[test]
    fn names_without_compression_and_second_position_are_read() {
        let text = "positions: instr line\nevents: Ir Dr\nfn=a\n0x10 16 4 1\n+3 * 20\n* +1\n";
        assert_eq!(functions(text), [("a".to_owned(), 24)]);
    }

    #[test]
    fn other_events_and_broken_counts_are_errors() {
        assert!(Profile::parse("").is_err());
        assert!(Profile::parse("positions: line\nevents: Cycles Ir\n").is_err());
        let error = Profile::parse("positions: line\nevents: Ir\nfn=(1) a\n16 x\n").unwrap_err();
        assert_eq!(error.to_string(), "line 4 of callgrind's output: 16 x");
    }

    #[test]
    fn only_hashes_and_levels_of_recursion_are_cut_off() {
        for (name, expected) in [
            ("a::h0123456789abcdef", "a"),
            ("a::handle", "a::handle"),
            ("a::h0123", "a::h0123"),
            ("a'12", "a"),
            ("a<'b>::c'd", "a<'b>::c'd"),
        ] {
            assert_eq!(plain_name("/bin/a", name), expected);
        }
    }
}
