#include "go_asm.h"
#include "textflag.h"

// The sixteen products of a half block, as eight sums of two.
#define HALF(at, acc) \
	VPMOVSXBW weights_bytes+at(SI), acc \
	VPMADDWD  Block_Ints+2*at(DX), acc, acc

// The products of a block, as eight sums of four, in acc.
#define BLOCK(acc, tmp) \
	HALF(0, acc) \
	HALF(16, tmp) \
	VPADDD tmp, acc, acc \
	ADDQ   $weights__size, SI \
	ADDQ   $Block__size, DX

// The sums of four blocks, whose sums of four are in Y0 to Y3, in X0.
#define SUM4 \
	VPHADDD      Y1, Y0, Y0 \
	VPHADDD      Y3, Y2, Y2 \
	VPHADDD      Y2, Y0, Y0 \
	VEXTRACTI128 $1, Y0, X1 \
	VPADDD       X1, X0, X0

// The sum of one block, whose sums of four are in Y0, in the first lane of X0.
#define SUM1 \
	VPHADDD      Y0, Y0, Y0 \
	VPHADDD      Y0, Y0, Y0 \
	VEXTRACTI128 $1, Y0, X1 \
	VPADDD       X1, X0, X0

// A float32 field of the four structs before base.
#define GATHER(field, size, base, dst) \
	VMOVSS    field-4*size(base), dst \
	VINSERTPS $0x10, field-3*size(base), dst, dst \
	VINSERTPS $0x20, field-2*size(base), dst, dst \
	VINSERTPS $0x30, field-1*size(base), dst, dst

// The lanes of X0 are added to X8 one after the other.
#define ADD4 \
	VADDSS    X0, X8, X8 \
	VMOVSHDUP X0, X1 \
	VADDSS    X1, X8, X8 \
	VUNPCKHPS X0, X0, X1 \
	VADDSS    X1, X8, X8 \
	VPERMILPS $3, X0, X1 \
	VADDSS    X1, X8, X8

// func mulBlocks(w *weights, a *Block, n int) float32
TEXT ·mulBlocks(SB), NOSPLIT, $0-28
	MOVQ   w+0(FP), SI
	MOVQ   a+8(FP), DX
	MOVQ   n+16(FP), CX
	VXORPS X8, X8, X8
	SUBQ   $4, CX
	JL     rest

four:
	BLOCK(Y0, Y4)
	BLOCK(Y1, Y5)
	BLOCK(Y2, Y6)
	BLOCK(Y3, Y7)
	SUM4
	VCVTDQ2PS X0, X0
	GATHER(weights_d, weights__size, SI, X2)
	GATHER(weights_m, weights__size, SI, X3)
	GATHER(Block_Sum, Block__size, DX, X4)
	GATHER(Block_Scale, Block__size, DX, X5)
	VMULPS    X2, X0, X0
	VMULPS    X3, X4, X4
	VSUBPS    X4, X0, X0
	VMULPS    X5, X0, X0
	ADD4
	SUBQ      $4, CX
	JGE       four

rest:
	ADDQ $4, CX
	JZ   done

one:
	BLOCK(Y0, Y4)
	SUM1
	VCVTDQ2PS X0, X0
	VMULSS    weights_d-weights__size(SI), X0, X0
	VMOVSS    weights_m-weights__size(SI), X3
	VMULSS    Block_Sum-Block__size(DX), X3, X3
	VSUBSS    X3, X0, X0
	VMULSS    Block_Scale-Block__size(DX), X0, X0
	VADDSS    X0, X8, X8
	DECQ      CX
	JNZ       one

done:
	VMOVSS X8, ret+24(FP)
	VZEROUPPER
	RET

// Like BLOCK, for a block of Q8_0 in the file: a float16 scale, 32 bytes.
#define BLOCK8(acc, tmp) \
	VPMOVSXBW 2(SI), acc \
	VPMOVSXBW 18(SI), tmp \
	VPMADDWD  Block_Ints(DX), acc, acc \
	VPMADDWD  Block_Ints+32(DX), tmp, tmp \
	VPADDD    tmp, acc, acc \
	ADDQ      $34, SI \
	ADDQ      $Block__size, DX

// func mulRowQ8_0(row *byte, a *Block, n int) float32
TEXT ·mulRowQ8_0(SB), NOSPLIT, $0-28
	MOVQ   row+0(FP), SI
	MOVQ   a+8(FP), DX
	MOVQ   n+16(FP), CX
	VXORPS X8, X8, X8
	VXORPS X9, X9, X9
	SUBQ   $4, CX
	JL     rest8

four8:
	BLOCK8(Y0, Y4)
	BLOCK8(Y1, Y5)
	BLOCK8(Y2, Y6)
	BLOCK8(Y3, Y7)
	SUM4
	VCVTDQ2PS X0, X0
	VPINSRW   $0, -136(SI), X9, X2
	VPINSRW   $1, -102(SI), X2, X2
	VPINSRW   $2, -68(SI), X2, X2
	VPINSRW   $3, -34(SI), X2, X2
	VCVTPH2PS X2, X2
	GATHER(Block_Scale, Block__size, DX, X5)
	VMULPS    X2, X0, X0
	VMULPS    X5, X0, X0
	ADD4
	SUBQ      $4, CX
	JGE       four8

rest8:
	ADDQ $4, CX
	JZ   done8

one8:
	BLOCK8(Y0, Y4)
	SUM1
	VCVTDQ2PS X0, X0
	VPINSRW   $0, -34(SI), X9, X2
	VCVTPH2PS X2, X2
	VMULSS    X2, X0, X0
	VMULSS    Block_Scale-Block__size(DX), X0, X0
	VADDSS    X0, X8, X8
	DECQ      CX
	JNZ       one8

done8:
	VMOVSS X8, ret+24(FP)
	VZEROUPPER
	RET

// func dotHalves(sums *int32, w *weights, a *Block, n int)
TEXT ·dotHalves(SB), NOSPLIT, $0-32
	MOVQ sums+0(FP), DI
	MOVQ w+8(FP), SI
	MOVQ a+16(FP), DX
	MOVQ n+24(FP), CX
	TESTQ CX, CX
	JZ   end

block:
	HALF(0, Y0)
	HALF(16, Y1)
	VPHADDD      Y1, Y0, Y0
	VPHADDD      Y0, Y0, Y0
	VEXTRACTI128 $1, Y0, X1
	VPADDD       X1, X0, X0
	VMOVQ        X0, (DI)
	ADDQ         $8, DI
	ADDQ         $weights__size, SI
	ADDQ         $Block__size, DX
	DECQ         CX
	JNZ          block

end:
	VZEROUPPER
	RET

DATA nibble<>+0(SB)/8, $0x0f0f0f0f0f0f0f0f
DATA nibble<>+8(SB)/8, $0x0f0f0f0f0f0f0f0f
GLOBL nibble<>(SB), RODATA|NOPTR, $16

// func setLevelsVector(dst *[BlockValues]int8, src *byte, levels *[16]int8)
TEXT ·setLevelsVector(SB), NOSPLIT, $0-24
	MOVQ    dst+0(FP), DI
	MOVQ    src+8(FP), SI
	MOVQ    levels+16(FP), DX
	VMOVDQU (DX), X2
	VMOVDQU (SI), X0
	VPSRLW  $4, X0, X1
	VPAND   nibble<>(SB), X0, X0
	VPAND   nibble<>(SB), X1, X1
	VPSHUFB X0, X2, X0
	VPSHUFB X1, X2, X1
	VMOVDQU X0, (DI)
	VMOVDQU X1, 16(DI)
	RET

// func dotLanes(sums *[lanes]float32, w, x *float32, steps int)
TEXT ·dotLanes(SB), NOSPLIT, $0-32
	MOVQ   sums+0(FP), DI
	MOVQ   w+8(FP), SI
	MOVQ   x+16(FP), DX
	MOVQ   steps+24(FP), CX
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1

step:
	VMOVUPS (SI), Y2
	VMOVUPS 32(SI), Y3
	VMULPS  (DX), Y2, Y2
	VMULPS  32(DX), Y3, Y3
	VADDPS  Y2, Y0, Y0
	VADDPS  Y3, Y1, Y1
	ADDQ    $64, SI
	ADDQ    $64, DX
	DECQ    CX
	JNZ     step
	VMOVUPS Y0, (DI)
	VMOVUPS Y1, 32(DI)
	VZEROUPPER
	RET
