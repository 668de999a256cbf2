/* What a step of the primal-dual interior point methods does with the rows, whatever the norm.

     minimize  N(W)  subject to  F W - s = c,  s >= 0,     maximize  c . lam  subject to  N*(F' lam) <= 1,  lam >= 0

   with unit rows F; equality rows have no s and a free lam. A step changes lam, s and W together. The norm enters
   through its cone: linearized, its optimality conditions answer a change dD = F' dlam of the dual matrix by

     dW = k + K dD,    so that    (F K F' + diag(s / lam)) dlam = c + s - F W + (target / lam) - F k

   is the one linear system of a step, of the order of the rows. Steps are Mehrotra's: one that aims at the boundary
   tells how far the next may aim, and its second-order error is made good.

   Matrices are stored as LAPACK wants them, by columns; rows F (m, N) of NumPy are columns of F'. */
#ifndef ATTSVM_STEPS_H
#define ATTSVM_STEPS_H

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* BLAS and LAPACK as SciPy ships them: the order is that of ROUTINES in library.py. */
typedef struct {
    void (*gemm)(const char *, const char *, const int *, const int *, const int *, const double *, const double *,
                 const int *, const double *, const int *, const double *, double *, const int *);
    void (*gemv)(const char *, const int *, const int *, const double *, const double *, const int *, const double *,
                 const int *, const double *, double *, const int *);
    void (*syrk)(const char *, const char *, const int *, const int *, const double *, const double *, const int *,
                 const double *, double *, const int *);
    void (*symv)(const char *, const int *, const double *, const double *, const int *, const double *, const int *,
                 const double *, double *, const int *);
    void (*trsm)(const char *, const char *, const char *, const char *, const int *, const int *, const double *,
                 const double *, const int *, double *, const int *);
    void (*potrf)(const char *, const int *, double *, const int *, int *);
    void (*potrs)(const char *, const int *, const int *, const double *, const int *, double *, const int *, int *);
    void (*syevd)(const char *, const char *, const int *, double *, const int *, double *, double *, const int *, int *,
                  const int *, int *);
    void (*gesdd)(const char *, const int *, const int *, double *, const int *, double *, double *, const int *,
                  double *, const int *, double *, const int *, int *, int *);
    void (*gesv)(const int *, const int *, double *, const int *, int *, double *, const int *, int *);
} Routines;

extern Routines lapack;

enum { INEQUALITY = 1, EQUALITY = 0, VOID = -1 };

/* One problem, the point where its method stands, and the best one so far. */
typedef struct {
    int m, N;               /* rows, entries of W */
    int p, q;               /* shape of W */
    const double *F, *c;    /* unit rows (m, N) and right-hand sides (m,) */
    const signed char *sense;
    double *W, *lam, *slack; /* the point */
    double *D, *residual;   /* F' lam and c + slack - F W there */
    double *M, *factor, *ridge, *inverse; /* the system of a step */
    double *aimed, *pull, *right, *dlam, *dslack; /* products of the rows that a direction aims at, and what it is */
    double *best_W, *best_lam;
    double best;            /* larger of gap and miss at the best point */
    int waited, steps;
} State;

/* Numbers of working memory that a state takes, and the state on such memory. */
long state_numbers(int m, int N);
void state_begin(State *state, double *memory);

double dot(int n, const double *x, const double *y);
void margins(const State *state, const double *W, double *out);        /* F W */
void adjoint(const State *state, const double *lam, double *out);      /* F' lam */
int cholesky(int n, double *A);                                        /* the lower factor, in place; 0 without */
int raised_cholesky(int n, const double *A, double *factor);           /* 1 where A has one up to rounding */
void cholesky_solve(int n, const double *factor, double *x);

void measure_rows(State *state);                  /* D and residual of the point */
int prepare_rows(State *state);                   /* M = F K F' is completed and factored; 0 without a factor */
void solve_rows(State *state, const double *k);   /* dlam and dslack of the products aimed at, where W answers k */
double slope(int n, const double *point, const double *change);
double slope_of_rows(const State *state, const double *point, const double *change);
double row_products(const State *state, double primal, double dual);   /* slack . lam after steps of such lengths */
void aim_rows(State *state, double target);       /* from the last direction to the products of the next one */
double aim(double ahead, double now, int pairs, int exponent);
void move_rows(State *state, double primal, double dual);
void offer(State *state, double gap);             /* the point is the best so far, or it is not */
int goes_on(const State *state, int most, double goal);

/* The methods: 0 where the problem is left as it was for want of memory. */
int minimize_bounds(State *state, int shared, int most, double goal);
int minimize_power(State *state, double power, int most, double goal);
int minimize_spectral(State *state, int most, double goal);

/* From an interior point of the l_1 or (shared bounds) l_inf norm to its vertex: 1 where that is the best point now. `room`
   are r - W and r + W, `price` their multipliers. */
long vertex_numbers(int m, int N);
int find_vertex(State *state, int shared, double gap, const double *room, const double *price, double *memory,
                int *pivots);

#endif
