// RUN: not emmy-opt %s -p check-dominance --split-input-file 2>&1 | filecheck %s
// RUN: emmy-opt %s --split-input-file --verify-diagnostics | filecheck %s --check-prefix ALL

// CHECK:      check_dominance.mlir:{{[0-9]+}}:3: error: operand 0 of 'arith.addi' uses %a, the result of 'arith.constant', where it is not defined
// CHECK-NEXT:   %b = arith.addi %a, %a : i32
// CHECK-NEXT:   ^
// ALL:        check_dominance.mlir:{{[0-9]+}}:3: error: operand 0 of 'arith.addi' uses %a
func.func @use_before_definition() {
  %b = arith.addi %a, %a : i32
  %a = arith.constant 1 : i32
  func.return
}

// -----

// ALL: // -----
// ALL:   func.func @use_in_a_nested_region
func.func @use_in_a_nested_region(%n: index) {
  %c = arith.constant 1 : index
  scf.for %i = %c to %n step %c {
    %d = arith.addi %i, %c : index
  }
  func.return
}

// -----

// A value from around a kernel cannot be used in it.
// ALL: // -----
// ALL: error:
func.func @use_across_an_isolated_op() {
  %a = arith.constant 1 : index
  tile.kernel @k() {
    %b = arith.addi %a, %a : index
  }
  func.return
}
