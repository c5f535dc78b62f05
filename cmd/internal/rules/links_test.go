package rules

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/strata-engine/strata/testdata"
)

var (
	// link is [text](target) or [text](target "title"), with an image's
	// exclamation mark before it or not.
	link = regexp.MustCompile(`\]\(\s*<?([^)\s>]*)>?[^)]*\)`)
	// reference is the line "[name]: target".
	reference = regexp.MustCompile(`^ {0,3}\[[^\]^]+\]:\s*<?([^\s>]+)`)
	heading   = regexp.MustCompile(`^#{1,6}\s+(.*?)\s*#*$`)
	codeSpan  = regexp.MustCompile("`[^`]*`")
	// notInAnchor is what GitHub drops from a heading to make its anchor.
	notInAnchor = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

// prose calls visit with every line of a Markdown text outside code blocks.
func prose(text string, visit func(number int, line string)) {
	fence := ""
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimLeft(line, " ")
		switch {
		case fence != "":
			if strings.HasPrefix(trimmed, fence) {
				fence = ""
			}
		case strings.HasPrefix(trimmed, "```"):
			fence = "```"
		case strings.HasPrefix(trimmed, "~~~"):
			fence = "~~~"
		default:
			visit(i+1, line)
		}
	}
}

// anchors returns the anchors of a Markdown text's headings, as GitHub names
// them.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	prose(text, func(_ int, line string) {
		match := heading.FindStringSubmatch(line)
		if match == nil {
			return
		}
		base := strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(match[1]), ""), " ", "-")
		name := base
		for n := 1; found[name]; n++ {
			name = fmt.Sprintf("%s-%d", base, n)
		}
		found[name] = true
	})
	return found
}

// broken returns the links of one Markdown file that lead nowhere inside fsys,
// as "line: target". Links to other hosts are not followed.
func broken(fsys fs.FS, name string) ([]string, error) {
	text, err := fs.ReadFile(fsys, name)
	if err != nil {
		return nil, err
	}
	var found []string
	prose(string(text), func(number int, line string) {
		line = codeSpan.ReplaceAllString(line, "``")
		for _, match := range append(link.FindAllStringSubmatch(line, -1), reference.FindAllStringSubmatch(line, -1)...) {
			if !leads(fsys, name, match[1]) {
				found = append(found, fmt.Sprintf("%d: %s", number, match[1]))
			}
		}
	})
	return found, nil
}

// leads reports whether a link in the file name leads to something.
func leads(fsys fs.FS, name, target string) bool {
	u, err := url.Parse(target)
	if err != nil || target == "" {
		return false
	}
	if u.Scheme != "" {
		return true
	}
	if u.Host != "" || strings.HasPrefix(u.Path, "/") {
		return false // relative to a host, not to the repository
	}
	file := name
	if u.Path != "" {
		file = path.Join(path.Dir(name), u.Path)
	}
	if _, err := fs.Stat(fsys, file); err != nil { // also where it leaves the repository
		return false
	}
	if u.Fragment == "" || !strings.HasSuffix(file, ".md") {
		return true
	}
	text, err := fs.ReadFile(fsys, file)
	return err == nil && anchors(string(text))[u.Fragment]
}

func TestLinks(t *testing.T) {
	root := testdata.Root(t)
	for _, name := range files(t, root, ".md") {
		found, err := broken(os.DirFS(root), name)
		if err != nil {
			t.Fatal(err)
		}
		for _, place := range found {
			t.Errorf("%s:%s leads nowhere", name, place)
		}
	}
}

func TestLinkRule(t *testing.T) {
	fsys := fstest.MapFS{
		"docs/other.md": {Data: []byte("# The `Step`, and more\n\n```\n# not a heading\n```\n\n## Twice\n## Twice\n")},
		"LICENSE":       {},
		"docs/page.md": {Data: []byte(`# Page
[good](other.md) [anchor](other.md#the-step-and-more) [second](other.md#twice-1) ![up](../LICENSE "title") [here](#page)
[host](https://example.org/x) [mail](mailto:a@example.org) [folder](../docs)
[bad](absent.md) [code](other.md#not-a-heading)
[bad anchor](#absent)
[outside](../../LICENSE) [root](/LICENSE) [empty]()
` + "`[in code](absent.md)`" + `
` + "```" + `
[in a block](absent.md)
` + "```" + `
[name]: other.md
[bad]: gone.md
[^note]: A footnote.
`)},
	}
	want := []string{"4: absent.md", "4: other.md#not-a-heading", "5: #absent", "6: ../../LICENSE", "6: /LICENSE", "6: ", "12: gone.md"}
	got, err := broken(fsys, "docs/page.md")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("broken links (-want +got):\n%s", diff)
	}
}
