// Package config reads Strata's configuration: defaults, then a YAML file, then
// environment variables, then command-line flags, each layer overriding the one
// before. The result is one validated struct; every value that is not understood
// is an error that names the key, the value and a remedy.
//
// A key such as server.listen is written server: {listen: ...} in the file,
// STRATA_SERVER__LISTEN in the environment (two underscores stand for the dot)
// and, for the common keys, as a flag (BindFlags). Lists come from the
// environment as one JSON value: STRATA_DEVICES='[{"backend":"cpu"}]'.
package config

import "time"

// Config is the whole configuration. The koanf tags are the keys.
type Config struct {
	// Model says what is served.
	Model Model `koanf:"model"`
	// Server configures the HTTP server.
	Server Server `koanf:"server"`
	// Context is the most tokens of one sequence, prompt and answer together; 0
	// means the model's trained context, at most DefaultContext.
	Context int `koanf:"context" validate:"min=0,max=16777216"`
	// MaxSequences bounds how many sequences are computed at once.
	MaxSequences int `koanf:"max_sequences" validate:"min=1,max=256"`
	// QueueLimit bounds how many requests wait for their turn; further ones are
	// refused at once. 0 lets none wait.
	QueueLimit int `koanf:"queue_limit" validate:"min=0,max=65536"`
	// PrefillChunk is the most prompt tokens executed in one step.
	PrefillChunk int `koanf:"prefill_chunk" validate:"min=1,max=8192"`
	// Threads is how many threads each cpu device uses that does not name
	// options.threads; 0 leaves it to the backend.
	Threads int `koanf:"threads" validate:"min=0,max=1024"`
	// Devices execute the model, in the order of its layers.
	Devices []Device `koanf:"devices" validate:"min=1,max=64,dive"`
	// Plugins says where backend programs are found.
	Plugins Plugins `koanf:"plugins"`
	// Log configures what is logged.
	Log Log `koanf:"log"`
}

// DefaultContext bounds the context that is used where none is configured.
const DefaultContext = 32768

// Model says what is served.
type Model struct {
	// Path is the model file, or the first shard of a split one. Empty means the
	// model that comes with Strata.
	Path string `koanf:"path"`
	// Name is the id under which /v1/models lists the model; empty means the
	// file's name without its extension.
	Name string `koanf:"name" validate:"max=256"`
	// Draft is a file with an MTP block for a model that has none inside.
	Draft string `koanf:"draft"`
	// UseDraft says whether an MTP block is loaded where there is one.
	UseDraft bool `koanf:"use_draft"`
}

// Server configures the HTTP server.
type Server struct {
	// Listen is HOST:PORT. Port 0 lets the system choose.
	Listen string `koanf:"listen" validate:"listen"`
	// APIKeys are the keys of which a request must carry one, as Authorization:
	// Bearer KEY or x-api-key: KEY; APIKeysFile holds more, one a line. Without any
	// nobody is asked for a key, and AllowedHosts and TrustedOrigins say which
	// requests are refused instead.
	APIKeys     []string `koanf:"api_keys" validate:"max=1024,dive,required,apikey"`
	APIKeysFile string   `koanf:"api_keys_file"`
	// AllowedHosts are further names that the Host header may carry, besides
	// localhost and IP addresses. Other names are refused, so that a web page
	// cannot reach the server by a name of its own (DNS rebinding).
	AllowedHosts []string `koanf:"allowed_hosts" validate:"dive,required"`
	// TrustedOrigins are further origins, such as https://chat.example.org, from
	// which a browser may send requests.
	TrustedOrigins []string `koanf:"trusted_origins" validate:"dive,origin"`
	// CORSOrigins are origins whose pages may send requests and read the answers
	// (CORS, cross-origin resource sharing).
	CORSOrigins []string `koanf:"cors_origins" validate:"dive,origin"`
	// TLS encrypts connections.
	TLS TLS `koanf:"tls"`
	// HeaderTimeout bounds how long a client may take to send a request's
	// headers, BodyTimeout its body.
	HeaderTimeout time.Duration `koanf:"header_timeout" validate:"min=1s"`
	BodyTimeout   time.Duration `koanf:"body_timeout" validate:"min=1s"`
	// WriteTimeout is how long one write may wait for a client that does not
	// read; then its request is cancelled.
	WriteTimeout time.Duration `koanf:"write_timeout" validate:"min=1s"`
	// IdleTimeout closes connections without a request for that long.
	IdleTimeout time.Duration `koanf:"idle_timeout" validate:"min=1s"`
	// HoldHeaders is how long a stream's headers are held back, so that a failure
	// before the first token still has a status of its own.
	HoldHeaders time.Duration `koanf:"hold_headers" validate:"min=0s,max=60s"`
	// KeepAlive is the silence after which a stream carries a comment line, so
	// that proxies do not take it for dead.
	KeepAlive time.Duration `koanf:"keep_alive" validate:"min=1s"`
	// ShutdownTimeout bounds how long running requests may finish after SIGINT or
	// SIGTERM.
	ShutdownTimeout time.Duration `koanf:"shutdown_timeout" validate:"min=0s"`
	// MaxBody and MaxHeader bound a request in bytes.
	MaxBody   Bytes `koanf:"max_body" validate:"min=1024"`
	MaxHeader Bytes `koanf:"max_header" validate:"min=4096,max=16777216"`
}

// TLS says with which certificate connections are encrypted; empty means that they
// are not.
type TLS struct {
	// CertFile holds the certificate and those that vouch for it, KeyFile its
	// private key, both as PEM.
	CertFile string `koanf:"cert_file" validate:"required_with=KeyFile"`
	KeyFile  string `koanf:"key_file" validate:"required_with=CertFile"`
}

// Device is one device that executes a range of layers.
type Device struct {
	// Backend is the kind of backend: the program strata-backend-KIND.
	Backend string `koanf:"backend" validate:"required"`
	// Device selects a device of that backend; empty leaves it to the backend.
	Device string `koanf:"device"`
	// Layers are the first and last layer, both included, like "0-23". Empty in
	// every device divides the layers evenly.
	Layers string `koanf:"layers" validate:"omitempty,layers"`
	// Transport is how steps travel: shm, grpc, or auto for the best available.
	Transport string `koanf:"transport" validate:"omitempty,oneof=auto shm grpc"`
	// Options are the backend's own settings.
	Options map[string]string `koanf:"options"`
}

// Plugins says where backend programs are found.
type Plugins struct {
	// Dir is the folder that holds the programs, named strata-backend-KIND.
	Dir string `koanf:"dir"`
}

// Log configures what is logged.
type Log struct {
	// Level is the least severe level that is written.
	Level string `koanf:"level" validate:"oneof=trace debug info warn error off"`
	// Format is text or json.
	Format string `koanf:"format" validate:"oneof=text json"`
}

// Defaults returns the configuration that holds where nothing else is said.
func Defaults() Config {
	return Config{
		Model: Model{UseDraft: true},
		Server: Server{
			Listen:          "127.0.0.1:8080",
			HeaderTimeout:   10 * time.Second,
			BodyTimeout:     60 * time.Second,
			WriteTimeout:    30 * time.Second,
			IdleTimeout:     120 * time.Second,
			HoldHeaders:     5 * time.Second,
			KeepAlive:       10 * time.Second,
			ShutdownTimeout: 30 * time.Second,
			MaxBody:         32 << 20,
			MaxHeader:       64 << 10,
		},
		MaxSequences: 8,
		QueueLimit:   64,
		PrefillChunk: 512,
		Devices:      []Device{{Backend: "cpu"}},
		Log:          Log{Level: "warn", Format: "text"},
	}
}
