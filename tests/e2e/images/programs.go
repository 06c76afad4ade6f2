package images

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path"
	"strings"
)

// WithLibraries adds the shared libraries that a program needs at run time, from this machine, so that an image of a
// debug build needs no separate build. A static program has none.
func (i Image) WithLibraries(ctx context.Context) (Image, error) {
	files := maps.Clone(i.Files)
	for _, program := range i.Files {
		libraries, err := sharedLibraries(ctx, program)
		if err != nil {
			return i, err
		}
		for _, library := range libraries {
			files[library] = library
		}
	}
	i.Files = files
	return i, nil
}

// sharedLibraries asks the program's dynamic linker, which also lists itself.
func sharedLibraries(ctx context.Context, program string) ([]string, error) {
	file, err := elf.Open(program)
	if errors.As(err, new(*elf.FormatError)) {
		return nil, nil // not an ELF file
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	section := file.Section(".interp")
	if section == nil {
		return nil, nil
	}
	name, err := section.Data()
	if err != nil {
		return nil, err
	}
	linker := strings.TrimRight(string(name), "\x00")
	output, err := exec.CommandContext(ctx, linker, "--list", program).Output()
	if err != nil {
		return nil, fmt.Errorf("list the libraries of %s: %w", program, err)
	}
	found := []string{linker}
	for _, field := range strings.Fields(string(output)) {
		if path.IsAbs(field) && field != linker {
			found = append(found, field)
		}
	}
	return found, nil
}

// staticArchitecture returns the architecture of a program, as Go names it. It fails unless the program is static.
func staticArchitecture(program string) (string, error) {
	file, err := elf.Open(program)
	if err != nil {
		return "", fmt.Errorf("%s is not a program for Linux: %w", program, err)
	}
	defer file.Close()
	for _, part := range file.Progs {
		if part.Type == elf.PT_INTERP {
			return "", fmt.Errorf("%s is not static: it needs a dynamic linker, which an image from scratch does not have", program)
		}
	}
	// A static position-independent program also has a dynamic section.
	needed, err := file.ImportedLibraries()
	if err != nil {
		return "", fmt.Errorf("read the libraries of %s: %w", program, err)
	}
	if len(needed) > 0 {
		return "", fmt.Errorf("%s is not static: it needs %s", program, strings.Join(needed, ", "))
	}
	switch file.Machine {
	case elf.EM_X86_64:
		return "amd64", nil
	case elf.EM_AARCH64:
		return "arm64", nil
	}
	return "", fmt.Errorf("%s is for %s, images support only amd64 and arm64", program, file.Machine)
}
