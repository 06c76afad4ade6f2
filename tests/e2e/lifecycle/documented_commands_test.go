package lifecycle

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// This file runs commands of docs/install.md, with replacements for its example values.

// runSection runs all commands of a section.
func (l *lifecycle) runSection(t *testing.T, section string, replacements ...string) {
	t.Helper()
	for _, command := range sectionCommands(t, section, replacements...) {
		l.runKubectl(t, command)
	}
}

// runQuoted runs a command that the text of a section quotes.
func (l *lifecycle) runQuoted(t *testing.T, section, command string) {
	t.Helper()
	if !strings.Contains(sectionText(t, section), "`"+command+"`") {
		t.Fatalf("docs/install.md does not say `%s` in section %s", command, section)
	}
	for _, words := range splitCommands(t, command) {
		l.runKubectl(t, words)
	}
}

// runKubectl runs kubectl with these arguments. It must succeed within the time limit.
func (l *lifecycle) runKubectl(t *testing.T, arguments []string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	return must(l.node.Kubectl(ctx, "", arguments...))(t)
}

// sectionCommands returns the arguments of each kubectl command in a section.
func sectionCommands(t *testing.T, section string, replacements ...string) [][]string {
	t.Helper()
	_, text, hasCommands := strings.Cut(sectionText(t, section), "```sh\n")
	text, _, _ = strings.Cut(text, "```")
	if !hasCommands {
		t.Fatalf("section %s of docs/install.md has no commands", section)
	}
	return splitCommands(t, strings.NewReplacer(replacements...).Replace(text))
}

func sectionText(t *testing.T, section string) string {
	t.Helper()
	text := string(must(os.ReadFile(filepath.Join(deployDir, "..", "docs", "install.md")))(t))
	_, text, hasSection := strings.Cut(text, "\n## "+section+"\n")
	if !hasSection {
		t.Fatalf("docs/install.md has no section %s", section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// splitCommands lets a shell parse commands with quotes, comments and continued lines. It does not execute them:
// `kubectl` is replaced by a function that prints its arguments, and other programs are not found.
func splitCommands(t *testing.T, text string) [][]string {
	t.Helper()
	const end = "\n"
	shell := exec.CommandContext(t.Context(), "sh", "-ceu", `kubectl() { printf '%s\0' "$@" "`+end+`"; }`+"\n"+text)
	shell.Env = []string{"PATH="}
	var errs strings.Builder
	shell.Stderr = &errs
	output, err := shell.Output()
	if err != nil {
		t.Fatalf("docs/install.md has a command that this test can't parse: %v: %s\n%s", err, errs.String(), text)
	}
	var found [][]string
	var words []string
	for word := range strings.SplitSeq(strings.TrimSuffix(string(output), "\x00"), "\x00") {
		if word == end {
			found, words = append(found, words), nil
		} else {
			words = append(words, word)
		}
	}
	return found
}
