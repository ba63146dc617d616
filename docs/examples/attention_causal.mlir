// Causal attention of 8 heads of dimension 64 over sequences of any length, in any memory order.
func.func @attention_causal(%q: tensor<?x8x?x64xf16>, %k: tensor<?x8x?x64xf16>, %v: tensor<?x8x?x64xf16>) -> tensor<?x8x?x64xf16> {
  %o = tensor_op.attention %q, %k, %v scale 0.125 causal
     : (tensor<?x8x?x64xf16>, tensor<?x8x?x64xf16>, tensor<?x8x?x64xf16>) -> tensor<?x8x?x64xf16>
  func.return %o : tensor<?x8x?x64xf16>
}
