package sdk

import (
	"context"
	"math"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
)

// Protocol names the wire protocol in InfoResponse.
const Protocol = "v1alpha1"

// ProtocolVersion is the version that go-plugin negotiates. It changes when a
// host and a backend of different versions could not work together at all;
// abilities are data in Info.
const ProtocolVersion = 1

// PluginName is what the host dispenses.
const PluginName = "backend"

// Handshake is shared by host and backend. The cookie only tells a program that
// was started by hand from one that a host started; it protects nothing.
var Handshake = plugin.HandshakeConfig{
	MagicCookieKey:   "STRATA_BACKEND_COOKIE",
	MagicCookieValue: "5d3f0c7c9f0e4a5fb1c9f7a0a9f2f6d1",
}

// Names of the environment variables through which the host passes file
// descriptors, as decimal numbers of 3 or more, or 0 for standard input where a
// system cannot pass others. Each may be absent.
const (
	// EnvLifeline: the read end of a pipe whose write end only the host holds. At
	// its end of file the backend kills itself.
	EnvLifeline = "STRATA_FD_LIFELINE"
	// EnvVitals: the vitals page.
	EnvVitals = "STRATA_FD_VITALS"
	// EnvData: the data segment. Without it steps travel over the Steps stream.
	EnvData = "STRATA_FD_DATA"
)

// Plugin is the go-plugin glue of the service. On the host's side, where it has
// no server, it dispenses a pb.BackendClient.
type Plugin struct {
	plugin.NetRPCUnsupportedPlugin
	server *Server
}

var _ plugin.GRPCPlugin = (*Plugin)(nil)

// Plugins is what both sides hand to go-plugin as VersionedPlugins: the backend
// with its server, the host with nil.
func Plugins(server *Server) map[int]plugin.PluginSet {
	return map[int]plugin.PluginSet{ProtocolVersion: {PluginName: &Plugin{server: server}}}
}

// GRPCServer registers the service.
func (p *Plugin) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	pb.RegisterBackendServer(s, p.server)
	return nil
}

// GRPCClient returns a pb.BackendClient.
func (p *Plugin) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return pb.NewBackendClient(conn), nil
}

// NewGRPCServer makes the gRPC server of a backend process. Windows with a
// residual exceed the default limit of 4 MiB; their size is bounded by the
// limits of the stage.
func NewGRPCServer(opts []grpc.ServerOption) *grpc.Server {
	return grpc.NewServer(append(opts, grpc.MaxRecvMsgSize(math.MaxInt32), grpc.MaxSendMsgSize(math.MaxInt32))...)
}
