// Package core holds the contracts between the parts of Strata: what a model
// file says (ModelSpec), what is executed (Window, Step, Done), who executes it
// (Backend), where experts live (ExpertPool) and who owns the state of every
// sequence (KVStore).
//
// The package imports the standard library only. Implementations live beside
// it (core/kv, core/expert, core/engine) and below plugins; nothing here knows
// about processes, gRPC or a particular device.
package core
