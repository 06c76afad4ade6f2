//! `--kubeconfig` among a container's arguments: one dash or two, with `=` or as two words, in `command` or `args`.

use serde_json::json;

use super::pod::Container;
use super::refusal::Refusal;

/// As Go's `flag` takes them; `pflag` takes the second alone.
const FLAGS: [&str; 2] = ["-kubeconfig", "--kubeconfig"];
/// What may stand there for a shell: it is led to the sidecar already.
const VARIABLES: [&str; 3] = ["$KUBECONFIG", "${KUBECONFIG}", "$(KUBECONFIG)"];

/// Leads the flag to the file, wherever the container has it; adds it if that `is_asked_for` and it has none.
pub(super) fn lead(
    container: &mut Container,
    path: &str,
    is_asked_for: bool,
    has_variable: bool,
) -> Result<(), Refusal> {
    let mut command = container.strings("command");
    // A flag at the end of the command has its value in the arguments.
    let arguments_begin = command.len();
    command.extend(container.strings("args"));
    let before = command.clone();
    let is_there = rewrite(&mut command, path);
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

/// Whether there was one.
fn rewrite(words: &mut [String], path: &str) -> bool {
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

/// Whether a word is a line for a shell that has the flag, with a value that leads elsewhere.
fn hides_flag(word: &str, path: &str, has_variable: bool) -> bool {
    let starts = |at: usize| {
        let before = word.get(..at).unwrap_or_default();
        before.ends_with(|c: char| c.is_whitespace() || "\"'`;&|(".contains(c))
    };
    let leads_elsewhere = |rest: &str| {
        let rest = rest.trim_start_matches(['"', '\'']);
        let Some(value) = rest.strip_prefix(|c: char| c == '=' || c.is_whitespace()) else {
            return rest.is_empty();
        };
        let value = value.trim_start_matches(|c: char| c.is_whitespace() || "\"'".contains(c));
        let is_variable = has_variable && VARIABLES.iter().any(|variable| value.starts_with(variable));
        !is_variable && !value.starts_with(path)
    };
    FLAGS.iter().any(|flag| {
        let mut found = word.match_indices(flag);
        found.any(|(at, flag)| starts(at) && word.get(at + flag.len()..).is_some_and(leads_elsewhere))
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

    fn led(command: &Value, args: &Value, is_asked_for: bool) -> (Vec<String>, Vec<String>) {
        let mut container = container(command, args);
        lead(&mut container, PATH, is_asked_for, true).unwrap();
        let once = container.clone();
        lead(&mut container, PATH, is_asked_for, true).unwrap();
        assert_eq!(container, once);
        (container.strings("command"), container.strings("args"))
    }

    #[test]
    fn every_spelling_is_led_to_the_sidecar() {
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
            assert_eq!(json!(led(&none, &args, false).1), expected, "{args}");
            assert_eq!(json!(led(&args, &none, false).0), expected, "{args} as command");
        }
    }

    #[test]
    fn a_value_may_begin_the_arguments() {
        let (command, args) = led(&json!(["/manager", "--kubeconfig"]), &json!(["/x", "--v=2"]), false);
        assert_eq!(
            (command, args),
            (
                vec!["/manager".to_owned(), "--kubeconfig".to_owned()],
                vec![PATH.to_owned(), "--v=2".to_owned()]
            )
        );
    }

    #[test]
    fn it_is_added_where_somebody_asks_for_it() {
        let (command, args) = led(&json!(["/manager"]), &json!(["--v=2"]), true);
        assert_eq!(
            (json!(command), json!(args)),
            (json!(["/manager"]), json!(["--v=2", "--kubeconfig=/k/fake.yaml"]))
        );
        assert_eq!(
            led(&json!(["/manager"]), &json!(null), true).1,
            ["--kubeconfig=/k/fake.yaml"]
        );
        assert_eq!(
            led(&json!([]), &json!(["-kubeconfig=/x"]), true).1,
            ["-kubeconfig=/k/fake.yaml"]
        );
    }

    #[test]
    fn a_flag_in_a_line_for_a_shell_is_refused_unless_it_leads_to_the_sidecar() {
        let ask = |line: &str, has_variable: bool| {
            let mut container = container(&json!(["sh", "-c", line]), &json!([]));
            lead(&mut container, PATH, false, has_variable).is_err()
        };
        for line in [
            "/manager --kubeconfig=/x",
            "/manager -kubeconfig /x --v=2",
            "exec \"--kubeconfig\" /x",
            "a;--kubeconfig=/x",
            "/manager --kubeconfig",
        ] {
            assert!(ask(line, true), "{line}");
        }
        for line in [
            "/manager --kubeconfig=$KUBECONFIG",
            "/manager --kubeconfig \"${KUBECONFIG}\"",
            "/manager --kubeconfig=/k/fake.yaml",
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
}
