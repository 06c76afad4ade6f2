//! Finds and replaces `--kubeconfig` among a container's arguments: one dash or two, with `=` or as two words, in `command` or
//! `args`. Also finds KUBECONFIG when it is set there by a shell or by `env`.

use serde_json::json;

use super::pod::Container;
use super::refusal::Refusal;

/// The spellings that Go's `flag` accepts; `pflag` accepts only the second.
const FLAGS: [&str; 2] = ["-kubeconfig", "--kubeconfig"];
/// Values in a line for a shell that already lead to the sidecar.
const VARIABLES: [&str; 3] = ["$KUBECONFIG", "${KUBECONFIG}", "$(KUBECONFIG)"];
/// Prefix of a word that sets the variable.
const SETS: &str = "KUBECONFIG=";
const QUOTES: [char; 2] = ['"', '\''];
/// Characters that end a word for a shell, besides white space.
const ENDS: &str = ";&|<>()`";

/// Sets the flag to the file wherever the container has it. If it has none and `is_asked_for`, adds it.
pub(super) fn set_kubeconfig_flag(
    container: &mut Container,
    path: &str,
    is_asked_for: bool,
    has_variable: bool,
) -> Result<(), Refusal> {
    let mut command = container.string_list("command");
    // A flag at the end of the command has its value in the arguments.
    let arguments_begin = command.len();
    command.extend(container.string_list("args"));
    let before = command.clone();
    let is_there = replace_flag_values(&mut command, path);
    if let Some(argument) = command.iter().find(|it| hides_flag(it, path, has_variable)) {
        return Err(Refusal::HiddenFlag {
            container: container.name().to_owned(),
            argument: argument.clone(),
        });
    }
    if is_asked_for && !is_there {
        command.push(format!("--kubeconfig={path}"));
    }
    if command == before {
        return Ok(());
    }
    let arguments = command.split_off(arguments_begin.min(command.len()));
    for (field, words) in [("command", command), ("args", arguments)] {
        if !words.is_empty() {
            container.0.insert(field.to_owned(), json!(words));
        }
    }
    Ok(())
}

/// Replaces the flag's values. Returns whether the flag was there.
fn replace_flag_values(words: &mut [String], path: &str) -> bool {
    let (mut is_there, mut is_value) = (false, false);
    for word in words {
        if is_value {
            path.clone_into(word);
            is_value = false;
        } else if FLAGS.contains(&word.as_str()) {
            (is_there, is_value) = (true, true);
        } else if let Some((flag, _)) = word.split_once('=').filter(|(flag, _)| FLAGS.contains(flag)) {
            *word = format!("{flag}={path}");
            is_there = true;
        }
    }
    is_there
}

/// Fails if an argument sets the variable to another file than the sidecar's.
pub(super) fn check_variable(container: &Container, path: &str) -> Result<(), Refusal> {
    let mut words = container.string_list("command");
    words.extend(container.string_list("args"));
    let by_env = words.iter().any(|word| word.rsplit('/').next() == Some("env"));
    // In other commands, such an argument is not a variable.
    words.retain(|word| by_env || word.contains(|c: char| c.is_whitespace() || ENDS.contains(c)));
    match words.into_iter().find(|word| sets_variable(word, path)) {
        Some(argument) => Err(Refusal::HiddenVariable {
            container: container.name().to_owned(),
            argument,
        }),
        None => Ok(()),
    }
}

fn sets_variable(word: &str, path: &str) -> bool {
    word.match_indices(SETS).any(|(at, set)| {
        let value = word.get(at + set.len()..).unwrap_or_default();
        (at == 0 || begins_word(word, at)) && !is_ours(value, path, true)
    })
}

/// Whether a word is a line for a shell with the flag and a value that leads elsewhere.
fn hides_flag(word: &str, path: &str, has_variable: bool) -> bool {
    let leads_elsewhere = |rest: &str| {
        let rest = rest.trim_start_matches(QUOTES);
        let Some(value) = rest.strip_prefix(|c: char| c == '=' || c.is_whitespace()) else {
            return rest.is_empty();
        };
        !is_ours(value.trim_start(), path, has_variable)
    };
    FLAGS.iter().any(|flag| {
        let mut found = word.match_indices(flag);
        found.any(|(at, flag)| begins_word(word, at) && word.get(at + flag.len()..).is_some_and(leads_elsewhere))
    })
}

/// Whether a word of a line begins here. The line's first word does not count.
fn begins_word(line: &str, at: usize) -> bool {
    let before = line.get(..at).unwrap_or_default();
    before.ends_with(|c: char| c.is_whitespace() || QUOTES.contains(&c) || ENDS.contains(c))
}

/// Whether a value in a line leads to the sidecar. `$KUBECONFIG_PATH` and `"$KUBECONFIG".old` only begin like one that does.
fn is_ours(value: &str, path: &str, has_variable: bool) -> bool {
    let value = value.trim_start_matches(QUOTES);
    let variables = VARIABLES.into_iter().filter(|_| has_variable);
    let rests = variables.chain([path]).filter_map(|ours| value.strip_prefix(ours));
    // `${KUBECONFIG:-…}` has a default, which is not used because the variable is set.
    let or_else = value.strip_prefix("${KUBECONFIG").filter(|_| has_variable);
    let or_else = or_else.and_then(|rest| rest.strip_prefix(':').unwrap_or(rest).strip_prefix(['-', '?', '=']));
    rests
        .chain(or_else.and_then(|rest| Some(rest.split_once('}')?.1)))
        .any(|rest| {
            let rest = rest.trim_start_matches(QUOTES);
            rest.is_empty() || rest.starts_with(|c: char| c.is_whitespace() || ENDS.contains(c))
        })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const PATH: &str = "/k/fake.yaml";

    fn container(command: &Value, args: &Value) -> Container {
        let container = json!({"name": "manager", "command": command, "args": args});
        Container(container.as_object().unwrap().clone())
    }

    fn with_kubeconfig_flag(command: &Value, args: &Value, is_asked_for: bool) -> (Vec<String>, Vec<String>) {
        let mut container = container(command, args);
        set_kubeconfig_flag(&mut container, PATH, is_asked_for, true).unwrap();
        let once = container.clone();
        set_kubeconfig_flag(&mut container, PATH, is_asked_for, true).unwrap();
        assert_eq!(container, once);
        (container.string_list("command"), container.string_list("args"))
    }

    #[test]
    fn kubeconfig_flag_is_replaced_in_every_spelling() {
        let none = json!([]);
        for (args, expected) in [
            (
                json!(["--kubeconfig=/x", "--v=2"]),
                json!(["--kubeconfig=/k/fake.yaml", "--v=2"]),
            ),
            (json!(["-kubeconfig=/x"]), json!(["-kubeconfig=/k/fake.yaml"])),
            (json!(["--kubeconfig="]), json!(["--kubeconfig=/k/fake.yaml"])),
            (
                json!(["--kubeconfig", "/x", "--v=2"]),
                json!(["--kubeconfig", "/k/fake.yaml", "--v=2"]),
            ),
            (json!(["-kubeconfig", "--v=2"]), json!(["-kubeconfig", "/k/fake.yaml"])),
            (
                json!(["--kubeconfig=/a", "--kubeconfig=/b"]),
                json!(["--kubeconfig=/k/fake.yaml", "--kubeconfig=/k/fake.yaml"]),
            ),
            (
                json!(["--kubeconfig-context=x", "--remote-kubeconfig=/y"]),
                json!(["--kubeconfig-context=x", "--remote-kubeconfig=/y"]),
            ),
            (json!(["--v=2"]), json!(["--v=2"])),
        ] {
            assert_eq!(json!(with_kubeconfig_flag(&none, &args, false).1), expected, "{args}");
            assert_eq!(
                json!(with_kubeconfig_flag(&args, &none, false).0),
                expected,
                "{args} as command"
            );
        }
    }

    #[test]
    fn kubeconfig_value_may_begin_arguments() {
        let (command, args) =
            with_kubeconfig_flag(&json!(["/manager", "--kubeconfig"]), &json!(["/x", "--v=2"]), false);
        assert_eq!(
            (command, args),
            (
                vec!["/manager".to_owned(), "--kubeconfig".to_owned()],
                vec![PATH.to_owned(), "--v=2".to_owned()]
            )
        );
    }

    #[test]
    fn kubeconfig_flag_is_added_where_requested() {
        let (command, args) = with_kubeconfig_flag(&json!(["/manager"]), &json!(["--v=2"]), true);
        assert_eq!(
            (json!(command), json!(args)),
            (json!(["/manager"]), json!(["--v=2", "--kubeconfig=/k/fake.yaml"]))
        );
        assert_eq!(
            with_kubeconfig_flag(&json!(["/manager"]), &json!(null), true).1,
            ["--kubeconfig=/k/fake.yaml"]
        );
        assert_eq!(
            with_kubeconfig_flag(&json!([]), &json!(["-kubeconfig=/x"]), true).1,
            ["-kubeconfig=/k/fake.yaml"]
        );
    }

    #[test]
    fn kubeconfig_flag_in_shell_line_is_refused_unless_it_leads_to_sidecar() {
        let ask = |line: &str, has_variable: bool| {
            let mut container = container(&json!(["sh", "-c", line]), &json!([]));
            set_kubeconfig_flag(&mut container, PATH, false, has_variable).is_err()
        };
        for line in [
            "/manager --kubeconfig=/x",
            "/manager -kubeconfig /x --v=2",
            "exec \"--kubeconfig\" /x",
            "a;--kubeconfig=/x",
            "/manager --kubeconfig",
            "exec /manager --kubeconfig=$KUBECONFIG_PATH",
            "/manager --kubeconfig=\"$KUBECONFIG\"_PATH",
            "/manager --kubeconfig ${KUBECONFIG}.old",
            "/manager --kubeconfig=/k/fake.yaml.old --v=2",
        ] {
            assert!(ask(line, true), "{line}");
        }
        for line in [
            "/manager --kubeconfig=$KUBECONFIG",
            "/manager --kubeconfig \"${KUBECONFIG}\"",
            "/manager --kubeconfig=/k/fake.yaml",
            "/manager --kubeconfig '/k/fake.yaml' --v=2",
            "(/manager --kubeconfig=$KUBECONFIG)",
            "/manager --kubeconfig=$KUBECONFIG; sleep 1",
            "/manager --kubeconfig=${KUBECONFIG}|cat",
            "bash -c '/manager --kubeconfig=$KUBECONFIG'",
            "/manager --remote-kubeconfig=/x",
            "/manager --kubeconfigs=/x",
        ] {
            assert!(!ask(line, true), "{line}");
        }
        assert!(
            ask("/manager --kubeconfig=$KUBECONFIG", false),
            "the variable is left alone"
        );
    }

    #[test]
    fn kubeconfig_variable_in_arguments_is_refused_unless_it_leads_to_sidecar() {
        let ask = |command: Value, args: Value| check_variable(&container(&command, &args), PATH);
        for line in [
            "KUBECONFIG=/x /manager",
            "export KUBECONFIG=/x; /manager",
            "cd /; KUBECONFIG=\"$OTHER\" /manager",
            "bash -c 'KUBECONFIG=/x /manager'",
            "KUBECONFIG= /manager",
            "KUBECONFIG=$KUBECONFIG_PATH /manager",
            "KUBECONFIG=$KUBECONFIG:/x /manager",
            "KUBECONFIG=$KUBECONFIG a; KUBECONFIG=/x b",
            "KUBECONFIG=/x;/manager",
            "KUBECONFIG=${KUBECONFIG:+/x} /manager",
            "KUBECONFIG=${KUBECONFIG:-/x}y /manager",
        ] {
            let refusal = ask(json!(["sh", "-c", line]), json!([]));
            let argument = line.to_owned();
            let container = "manager".to_owned();
            assert_eq!(refusal, Err(Refusal::HiddenVariable { container, argument }), "{line}");
        }
        assert!(ask(json!(["env", "KUBECONFIG=/x", "/manager"]), json!([])).is_err());
        assert!(ask(json!(["env"]), json!(["KUBECONFIG=/x", "/manager"])).is_err());
        for line in [
            "KUBECONFIG=/k/fake.yaml /manager",
            "export KUBECONFIG=\"$KUBECONFIG\"; /manager",
            "KUBECONFIG=$(KUBECONFIG)",
            "MY_KUBECONFIG=/x /manager",
            "/manager --pass=KUBECONFIG=/x",
            "export KUBECONFIG=${KUBECONFIG:-/x}; exec /manager",
            "KUBECONFIG=\"${KUBECONFIG?}\" /manager",
        ] {
            assert_eq!(ask(json!(["sh", "-c", line]), json!([])), Ok(()), "{line}");
        }
        let others = ask(json!(["/manager"]), json!(["--job-env", "KUBECONFIG=/x"]));
        assert_eq!(others, Ok(()), "what it means is the program's business");
    }
}
