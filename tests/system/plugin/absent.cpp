// SPDX-License-Identifier: Apache-2.0
extern "C" int llampi_absent() { return 0; }  // of a library that cannot be found when the tests run
