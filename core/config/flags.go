package config

import (
	"strings"

	"github.com/knadh/koanf/providers/posflag"
	"github.com/spf13/pflag"
)

// flagKeys maps the flags of BindFlags to their keys.
var flagKeys = map[string]string{
	"model":         "model.path",
	"draft":         "model.draft",
	"listen":        "server.listen",
	"context":       "context",
	"max-sequences": "max_sequences",
	"threads":       "threads",
	"plugins":       "plugins.dir",
	"log-level":     "log.level",
	"log-format":    "log.format",
}

// BindModelFlags defines the flags that say what is loaded and how it is
// executed.
func BindModelFlags(fs *pflag.FlagSet) {
	d := Defaults()
	fs.StringP("model", "m", "", "model `FILE` (GGUF; the first shard of a split model). Default: the model that comes with Strata")
	fs.String("draft", "", "`FILE` with an MTP block for a model that has none inside")
	BindContextFlag(fs)
	fs.IntP("threads", "t", 0, "`N` threads of each cpu device. Default: the backend's choice")
	BindPluginsFlag(fs)
	fs.String("log-level", d.Log.Level, "least severe `LEVEL` logged: trace, debug, info, warn, error, off")
	fs.String("log-format", d.Log.Format, "`FORMAT` of logs: text or json")
}

// BindContextFlag defines the flag that bounds a sequence.
func BindContextFlag(fs *pflag.FlagSet) {
	fs.IntP("context", "c", 0, "`N` tokens of one sequence, prompt and answer. Default: the model's, at most 32768")
}

// BindPluginsFlag defines the flag that says where backends are.
func BindPluginsFlag(fs *pflag.FlagSet) {
	fs.String("plugins", "", "`FOLDER` with the backend programs. Default: backends/ beside the strata program")
}

// BindServerFlags defines the flags of the HTTP server.
func BindServerFlags(fs *pflag.FlagSet) {
	d := Defaults()
	fs.StringP("listen", "l", d.Server.Listen, "`HOST:PORT` to listen on")
	fs.Int("max-sequences", d.MaxSequences, "`N` sequences computed at once")
}

// flagName names a key as the flag that sets it.
func flagName(key string) string {
	for name, k := range flagKeys {
		if k == key {
			return "--" + name
		}
	}
	return "--" + strings.ReplaceAll(key, ".", "-")
}

// flagValue hands the set flags to koanf under their keys.
func flagValue(fs *pflag.FlagSet) func(*pflag.Flag) (string, any) {
	return func(f *pflag.Flag) (string, any) {
		key, ok := flagKeys[f.Name]
		if !ok || !f.Changed {
			return "", nil
		}
		return key, posflag.FlagVal(fs, f)
	}
}
