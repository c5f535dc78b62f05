package arch

import (
	"errors"
	"fmt"

	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
)

// checkHyper checks that the hyper-parameters are there and fit each other, so
// that nothing later divides by zero or indexes beyond.
func checkHyper(spec *pb.ModelSpec, a *architecture) error {
	h := spec.GetHyper()
	if h == nil {
		return errors.New("the model has no hyper-parameters")
	}
	if err := checkCommon(h); err != nil {
		return fmt.Errorf("hyper-parameters of %s: %w", spec.GetArchitecture(), err)
	}
	if a.hyper != nil {
		if err := a.hyper(h); err != nil {
			return fmt.Errorf("hyper-parameters of %s: %w", spec.GetArchitecture(), err)
		}
	}
	return nil
}

// positive is a check that all named values are at least 1.
type positive struct {
	name  string
	value int32
}

func allPositive(values ...positive) error {
	for _, v := range values {
		if v.value < 1 {
			return fmt.Errorf("%s is %d and must be at least 1", v.name, v.value)
		}
	}
	return nil
}

// checkCommon checks what every architecture has.
func checkCommon(h *pb.Hyper) error {
	if err := allPositive(
		positive{"the number of layers", h.GetLayers()},
		positive{"the hidden size", h.GetWidth()},
		positive{"the vocabulary", h.GetVocab()},
		positive{"the number of attention heads", h.GetHeads()},
		positive{"the number of key/value heads", h.GetKvHeads()},
		positive{"the key length", h.GetHeadDim()},
		positive{"the value length", h.GetValueDim()},
		positive{"the number of experts", h.GetExperts()},
		positive{"the number of experts used", h.GetExpertsUsed()},
		positive{"the expert width", h.GetExpertWidth()},
	); err != nil {
		return err
	}
	switch {
	case h.GetDraftLayers() < 0 || h.GetDraftLayers() > 1:
		return fmt.Errorf("%d MTP blocks; 0 or 1 are supported", h.GetDraftLayers())
	case len(h.GetKinds()) != int(h.GetLayers())+int(h.GetDraftLayers()):
		return fmt.Errorf("%d layer kinds for %d layers and %d MTP blocks", len(h.GetKinds()), h.GetLayers(), h.GetDraftLayers())
	case !(h.GetNormEps() > 0):
		return fmt.Errorf("the norms' epsilon is %g and must be positive", h.GetNormEps())
	case h.GetHeads()%h.GetKvHeads() != 0:
		return fmt.Errorf("%d attention heads are no multiple of %d key/value heads", h.GetHeads(), h.GetKvHeads())
	case h.GetRopeDim() < 2 || h.GetRopeDim()%2 != 0 || h.GetRopeDim() > h.GetHeadDim():
		return fmt.Errorf("%d rotated dimensions of %d; they must be even", h.GetRopeDim(), h.GetHeadDim())
	case !(h.GetRopeBase() > 0):
		return fmt.Errorf("the rotary base is %g and must be positive", h.GetRopeBase())
	case h.GetExpertsUsed() > h.GetExperts():
		return fmt.Errorf("%d of %d experts used", h.GetExpertsUsed(), h.GetExperts())
	case h.GetSharedExpertWidth() < 0:
		return fmt.Errorf("the shared expert's width is %d", h.GetSharedExpertWidth())
	}
	return checkKinds(h)
}

// checkKinds checks what only some kinds of layers have.
func checkKinds(h *pb.Hyper) error {
	for i, k := range h.GetKinds() {
		var err error
		switch k {
		case pb.LayerKind_LAYER_KIND_ATTENTION:
		case pb.LayerKind_LAYER_KIND_SPARSE_ATTENTION:
			err = checkIndex(h)
		case pb.LayerKind_LAYER_KIND_DELTANET:
			err = checkDelta(h)
			if err == nil && i >= int(h.GetLayers()) {
				err = errors.New("an MTP block is an attention layer")
			}
		default:
			err = fmt.Errorf("unknown kind %d", k)
		}
		if err != nil {
			return fmt.Errorf("layer %d: %w", i, err)
		}
	}
	return nil
}

func checkIndex(h *pb.Hyper) error {
	if err := allPositive(
		positive{"the number of indexer heads", h.GetIndexHeads()},
		positive{"the indexer's key length", h.GetIndexDim()},
		positive{"the indexer's ratio", h.GetIndexRatio()},
		positive{"the indexer's budget", h.GetIndexBudget()},
	); err != nil {
		return err
	}
	switch {
	case h.GetIndexBudget()%h.GetIndexRatio() != 0:
		return fmt.Errorf("the indexer's budget of %d tokens is no multiple of the %d in a block", h.GetIndexBudget(), h.GetIndexRatio())
	case h.GetRopeDim() > h.GetIndexDim():
		return fmt.Errorf("%d rotated dimensions of an indexer key of %d", h.GetRopeDim(), h.GetIndexDim())
	}
	return nil
}

func checkDelta(h *pb.Hyper) error {
	if err := allPositive(
		positive{"the number of key heads", h.GetKeyHeads()},
		positive{"the number of value heads", h.GetValueHeads()},
		positive{"the state size", h.GetStateDim()},
		positive{"the convolution's kernel", h.GetConvKernel()},
		positive{"the inner size", h.GetInnerWidth()},
	); err != nil {
		return err
	}
	switch {
	case h.GetValueHeads()%h.GetKeyHeads() != 0:
		return fmt.Errorf("%d value heads are no multiple of %d key heads", h.GetValueHeads(), h.GetKeyHeads())
	case h.GetInnerWidth()%h.GetValueHeads() != 0:
		return fmt.Errorf("the inner size %d is no multiple of %d value heads", h.GetInnerWidth(), h.GetValueHeads())
	case int64(h.GetKeyHeads())*int64(h.GetStateDim()) > 1<<29 || h.GetInnerWidth() > 1<<29:
		return fmt.Errorf("%d key heads of %d and an inner size of %d are too large", h.GetKeyHeads(), h.GetStateDim(), h.GetInnerWidth())
	}
	return nil
}
