package images

import (
	"crypto/x509"
	"debug/elf"
	"encoding/binary"
	"encoding/pem"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

const repositoryRoot = "../../.."

// TestReleasedImagesFitManifests builds the images from substitutes for both programs, and checks what deploy and
// injection expect of them.
func TestReleasedImagesFitManifests(t *testing.T) {
	program := must(os.ReadFile(buildHello(t)))(t)
	release := Release{Programs: t.TempDir(), Archives: t.TempDir(), Registry: "docker.io/library", Version: workspaceVersion(t)}
	for _, image := range releasedImages {
		check(t, os.WriteFile(filepath.Join(release.Programs, image.program), program, 0o755))
	}
	release.Precompiled = t.TempDir()
	check(t, os.WriteFile(filepath.Join(release.Precompiled, "a.cwasm"), []byte("code"), 0o444))
	all := must(release.Make())(t)
	if len(all) != len(releasedImages) {
		t.Fatalf("%d archives were made", len(all))
	}
	for at, made := range all {
		of := releasedImages[at]
		if want := "docker.io/library/" + deployedImage(t, of.program); made.Name != want {
			t.Errorf("the image's name is %s, and kubelet asks for %s", made.Name, want)
		}
		if made.Platform != "linux/"+runtime.GOARCH {
			t.Errorf("%s is for %s", made.Name, made.Platform)
		}
		read := must(openArchive(made.Path))(t)
		if read.index.Annotations["io.containerd.image.name"] != made.Name {
			t.Errorf("%s has the annotations %v", made.Path, read.index.Annotations)
		}
		if got := len(read.files[strings.Trim(authoritiesPath, "/")]); got < 100_000 {
			t.Errorf("%s has %d bytes of authorities", made.Name, got)
		}
		want := int64(len(program)) + int64(len(read.files[strings.Trim(authoritiesPath, "/")]))
		if of.program == sidecarProgram {
			const artifact = "usr/lib/ctrlmesh/precompiled/a.cwasm"
			if string(read.files[artifact]) != "code" {
				t.Errorf("%s has no %s", made.Name, artifact)
			}
			want += int64(len("code"))
		}
		if made.Unpacked != want {
			t.Errorf("the files of %s have %d bytes, reported are %d", made.Name, want, made.Unpacked)
		}
		if info := must(os.Stat(made.Path))(t); made.Compressed != info.Size() {
			t.Errorf("%s has %d bytes, reported are %d", made.Path, info.Size(), made.Compressed)
		}
		assertSameAsDockerfile(t, of.program, read)
	}
	flags := readText(t, "proxy/src/config.rs")
	if want := `default_value = "` + precompiledPath + `"`; !strings.Contains(flags, want) {
		t.Errorf("the sidecar does not look for artifacts in %s", precompiledPath)
	}
	sidecar := must(openArchive(all[0].Path))(t).config.Config
	names := readText(t, "contract/src/names.rs")
	if want := firstMatch(t, names, `PROGRAM: &str = "(.*)"`); !slices.Equal(sidecar.Entrypoint, []string{want}) {
		t.Errorf("the sidecar's image runs %v, and the pod runs %s", sidecar.Entrypoint, want)
	}
	if want := firstMatch(t, names, `UID: u32 = (\d+)`); sidecar.User != want+":"+want {
		t.Errorf("the sidecar's image runs as %s, and the redirect rules exempt %s", sidecar.User, want)
	}
	manager := must(openArchive(all[1].Path))(t).config.Config
	deployment := readText(t, "deploy/base/deployment.yaml")
	if want := firstMatch(t, deployment, `runAsUser: (\d+)`) + ":" + firstMatch(t, deployment, `runAsGroup: (\d+)`); manager.User != want {
		t.Errorf("the manager's image runs as %s, and its pods as %s", manager.User, want)
	}
}

// TestReleaseRefusesUnsuitablePrograms uses programs that must not become an image.
func TestReleaseRefusesUnsuitablePrograms(t *testing.T) {
	static := buildHello(t)
	for name, test := range map[string]struct {
		prepare func(program string) error
		want    string
	}{
		"dynamically linked": {
			func(program string) error { return os.Rename(buildHello(t, "-buildmode=pie"), program) }, "is not static",
		},
		"not an executable": {
			func(program string) error { return os.WriteFile(program, []byte("#!/bin/sh"), 0o755) }, "is not a program for Linux",
		},
		"unsupported architecture": {
			func(program string) error {
				return os.WriteFile(program, programForMachine(t, static, elf.EM_RISCV), 0o755)
			}, "is for EM_RISCV",
		},
		"missing program": {func(string) error { return nil }, "no such file"},
		"too large": {func(program string) error {
			content, err := os.ReadFile(static)
			if err != nil {
				return err
			}
			if err := os.WriteFile(program, content, 0o755); err != nil {
				return err
			}
			return os.Truncate(program, sidecarLimit)
		}, "is too large"},
	} {
		t.Run(name, func(t *testing.T) {
			release := Release{Programs: t.TempDir(), Archives: t.TempDir(), Registry: "registry.example", Version: "1"}
			check(t, test.prepare(filepath.Join(release.Programs, "ctrlmesh-proxy")))
			_, err := release.Make()
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("the error is %v", err)
			}
			if left := must(filepath.Glob(filepath.Join(release.Archives, "*.tar")))(t); len(left) > 0 {
				t.Errorf("%v is left", left)
			}
		})
	}
}

// TestReleaseRefusesManagerWithOtherPlugins: sidecars would compile the plugins that a manager from another machine writes
// into chains, although they have precompiled ones.
func TestReleaseRefusesManagerWithOtherPlugins(t *testing.T) {
	program := must(os.ReadFile(buildHello(t)))(t)
	release := Release{Programs: t.TempDir(), Archives: t.TempDir(), Registry: "registry.example", Version: "1"}
	for _, image := range releasedImages {
		check(t, os.WriteFile(filepath.Join(release.Programs, image.program), program, 0o755))
	}
	plugins := t.TempDir()
	contained, other := filepath.Join(plugins, "contained.wasm"), filepath.Join(plugins, "other.wasm")
	check(t, os.WriteFile(contained, program[1000:2000], 0o644))
	check(t, os.WriteFile(other, []byte("\x00asm of another machine"), 0o644))

	release.Plugins = []string{contained, other}
	_, err := release.Make()
	if err == nil || !strings.Contains(err.Error(), "does not contain "+other) {
		t.Errorf("the error is %v", err)
	}
	if left := must(filepath.Glob(filepath.Join(release.Archives, "*.tar")))(t); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
	release.Plugins = []string{contained}
	if all := must(release.Make())(t); len(all) != len(releasedImages) {
		t.Errorf("%d archives were made", len(all))
	}
}

// TestImageHasArchitectureOfProgram: an image has the architecture of its program, not of the machine that builds it.
func TestImageHasArchitectureOfProgram(t *testing.T) {
	static := buildHello(t)
	for platform, machine := range map[string]elf.Machine{"linux/amd64": elf.EM_X86_64, "linux/arm64": elf.EM_AARCH64} {
		release := Release{Programs: t.TempDir(), Archives: t.TempDir(), Registry: "registry.example", Version: "1"}
		for _, image := range releasedImages {
			check(t, os.WriteFile(filepath.Join(release.Programs, image.program), programForMachine(t, static, machine), 0o755))
		}
		for _, made := range must(release.Make())(t) {
			read := must(openArchive(made.Path))(t)
			said := read.config.OS + "/" + read.config.Architecture
			if made.Platform != platform || said != platform || read.index.Platform.Architecture != read.config.Architecture {
				t.Errorf("%s is for %s, %s and %+v, not %s", made.Path, made.Platform, said, read.index.Platform, platform)
			}
		}
	}
}

// programForMachine returns a program whose ELF header names another machine.
func programForMachine(t *testing.T, program string, machine elf.Machine) []byte {
	t.Helper()
	const offset = 18 // of e_machine in ELF's header
	content := must(os.ReadFile(program))(t)
	binary.LittleEndian.PutUint16(content[offset:], uint16(machine))
	return content
}

// TestAuthoritiesHaveNoConstraints parses the file as TLS libraries do.
func TestAuthoritiesHaveNoConstraints(t *testing.T) {
	rest := must(Authorities())(t)
	conditional := map[string]bool{}
	for root := range bundle.Roots() {
		conditional[string(root.Certificate)] = root.Constraint != nil
	}
	names := map[string]bool{}
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		certificate := must(x509.ParseCertificate(block.Bytes))(t)
		if !certificate.IsCA {
			t.Errorf("%s is not an authority", certificate.Subject)
		}
		if conditional[string(block.Bytes)] {
			t.Errorf("%s is trusted only with constraints", certificate.Subject)
		}
		names[certificate.Subject.CommonName] = true
	}
	if len(strings.TrimSpace(string(rest))) > 0 || len(names) < 80 || !names["ISRG Root X1"] {
		t.Errorf("%d authorities, and %d other bytes", len(names), len(rest))
	}
}

// TestDockerfileUsesSameVersions: BuildKit's images have the same version and are compiled by the same compiler.
func TestDockerfileUsesSameVersions(t *testing.T) {
	dockerfile := readText(t, "images/Dockerfile")
	got, want := firstMatch(t, dockerfile, `ARG RUST_VERSION=(.*)`), firstMatch(t, readText(t, "rust-toolchain.toml"), `channel = "(.*)"`)
	if got != want {
		t.Errorf("images/Dockerfile takes Rust %s, and rust-toolchain.toml %s", got, want)
	}
	for _, found := range regexp.MustCompile(`ARG VERSION=(.*)`).FindAllStringSubmatch(dockerfile, -1) {
		if found[1] != workspaceVersion(t) {
			t.Errorf("images/Dockerfile calls itself %s, and Cargo.toml %s", found[1], workspaceVersion(t))
		}
	}
}

// assertSameAsDockerfile compares an archive with the stage of images/Dockerfile that makes the same image.
func assertSameAsDockerfile(t *testing.T, program string, image openedArchive) {
	t.Helper()
	_, stage, ok := strings.Cut(readText(t, "images/Dockerfile"), "\nFROM scratch AS "+program+"\n")
	if !ok {
		t.Fatalf("images/Dockerfile has no stage %s", program)
	}
	stage, _, _ = strings.Cut(stage, "\nFROM ")
	config := image.config.Config
	if want := `["` + strings.Join(config.Entrypoint, `", "`) + `"]`; firstMatch(t, stage, `ENTRYPOINT (.*)`) != want {
		t.Errorf("images/Dockerfile does not run %s", want)
	}
	if got := firstMatch(t, stage, `USER (.*)`); got != config.User {
		t.Errorf("images/Dockerfile runs it as %s, not %s", got, config.User)
	}
	var files []string
	for _, copied := range regexp.MustCompile(`(?m)^COPY --from=build \S+ /(\S+)$`).FindAllStringSubmatch(stage, -1) {
		files = append(files, copied[1])
	}
	// A copied path that ends in a slash is a directory.
	isCopied := func(file string) bool {
		return slices.ContainsFunc(files, func(copied string) bool {
			return file == copied || strings.HasSuffix(copied, "/") && path.Dir(file)+"/" == copied
		})
	}
	for file := range image.files {
		if !isCopied(file) {
			t.Errorf("images/Dockerfile has %v, and not %s", files, file)
		}
	}
	if len(files) != len(image.files) {
		t.Errorf("images/Dockerfile has %v", files)
	}
	for name := range config.Labels {
		if !strings.Contains(stage, name+"=") {
			t.Errorf("images/Dockerfile has no label %s", name)
		}
	}
}

// deployedImage is the name that deploy/ has for an image.
func deployedImage(t *testing.T, name string) string {
	t.Helper()
	kustomization := readText(t, "deploy/images/kustomization.yaml")
	return firstMatch(t, kustomization, `name: `+name+`\n  newName: (.*)\n`) + ":" + firstMatch(t, kustomization, `newName: `+name+`\n  newTag: (.*)\n`)
}

func workspaceVersion(t *testing.T) string {
	t.Helper()
	return firstMatch(t, readText(t, "Cargo.toml"), `(?m)^version = "(.*)"$`)
}

func readText(t *testing.T, file string) string {
	t.Helper()
	return string(must(os.ReadFile(filepath.Join(repositoryRoot, file)))(t))
}

// firstMatch returns the first submatch of a pattern in a text.
func firstMatch(t *testing.T, text, pattern string) string {
	t.Helper()
	found := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("nothing is like %s", pattern)
	}
	return found[1]
}
