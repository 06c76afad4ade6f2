//! docs/plugin-guide.md as its reader uses it: the code blocks of each step.

use ctrlmesh_tests::repository_root;

pub(crate) struct Block {
    step: u32,
    language: String,
    pub(crate) text: String,
}

pub(crate) struct Guide(Vec<Block>);

impl Guide {
    pub(crate) fn read() -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(repository_root().join("docs/plugin-guide.md"))?;
        let (mut step, mut blocks, mut open) = (0, Vec::new(), None::<Block>);
        for line in text.lines() {
            let heading = line.strip_prefix("## ").and_then(|rest| rest.split_once(". "));
            if let Some((number, _)) = heading {
                step = number.parse()?;
            }
            match (line.strip_prefix("```"), open.as_mut()) {
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (Some(language), None) => {
                    let language = language.to_owned();
                    open = Some(Block {
                        step,
                        language,
                        text: String::new(),
                    });
                }
                (None, Some(block)) => block.text += &format!("{line}\n"),
                (None, None) => {}
            }
        }
        Ok(Self(blocks))
    }

    /// The blocks of a step in one language, in order.
    pub(crate) fn blocks(&self, step: u32, language: &str) -> Vec<&Block> {
        let is_requested = |block: &&Block| block.step == step && block.language == language;
        self.0.iter().filter(is_requested).collect()
    }
}

impl Block {
    /// The commands to type: the lines after `$ `, with the lines of a here-document.
    pub(crate) fn commands(&self) -> Vec<String> {
        let (mut commands, mut is_here) = (Vec::<String>::new(), false);
        for line in self.text.lines() {
            match (line.strip_prefix("$ "), commands.last_mut()) {
                (Some(typed), _) => {
                    is_here = typed.contains("<<EOF");
                    commands.push(typed.to_owned());
                }
                (None, Some(last)) if is_here => {
                    *last += &format!("\n{line}");
                    is_here = line != "EOF";
                }
                _ => {}
            }
        }
        commands
    }
}

/// Code without comments, test attributes, line breaks and trailing commas, which a formatter or an author may change.
pub(crate) fn normalize_code(code: &str) -> String {
    let lines = code.lines().map(str::trim);
    let kept = lines.filter(|line| !line.starts_with("//") && *line != "#[test]");
    let text: String = kept.flat_map(|line| line.split_whitespace()).collect();
    [",)", ",]", ",}"]
        .iter()
        .fold(text, |text, end| text.replace(end, &end[1..]))
}
