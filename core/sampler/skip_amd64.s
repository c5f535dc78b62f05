#include "textflag.h"

// func skip(logits []float32, bar float32) int
TEXT ·skip(SB), NOSPLIT, $0-40
	MOVQ   logits_base+0(FP), SI
	MOVQ   logits_len+8(FP), CX
	MOVSS  bar+24(FP), X0
	SHUFPS $0, X0, X0
	XORQ   AX, AX
	ANDQ   $~15, CX

group:
	CMPQ     AX, CX
	JGE      done
	MOVUPS   (SI)(AX*4), X1
	MOVUPS   16(SI)(AX*4), X2
	MOVUPS   32(SI)(AX*4), X3
	MOVUPS   48(SI)(AX*4), X4
	CMPPS    X0, X1, $6        // not less or equal: greater, or unordered
	CMPPS    X0, X2, $6
	CMPPS    X0, X3, $6
	CMPPS    X0, X4, $6
	ORPS     X2, X1
	ORPS     X4, X3
	ORPS     X3, X1
	MOVMSKPS X1, DX
	TESTL    DX, DX
	JNZ      done
	ADDQ     $16, AX
	JMP      group

done:
	MOVQ AX, ret+32(FP)
	RET
