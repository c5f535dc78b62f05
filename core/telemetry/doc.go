// Package telemetry holds the server's metrics, in Prometheus' exposition format.
//
// What happens is counted when it happens (Requests, FirstToken, Token). What
// is, such as the length of the queue or the state of a device, is asked for when
// somebody looks (Snapshot). Everything lives in a registry of its own: there are
// no globals, and two servers in one process do not mix.
package telemetry
