// From tokens to the tree. Grammar and precedence are jinja2's; what the subset leaves out is
// refused here, with its place.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/chat_template/ast.h"
#include "io/chat_template/lexer.h"
#include "touchstone/io/chat_template.h"

namespace touchstone::inline v0::io::chat {

// `source` as normalize_source returns it.
Program parse(std::string_view source, int max_depth);

class Parser {
 public:
  Parser(std::string_view source, int max_depth)
      : source_(source), max_depth_(max_depth), tokens_(tokenize(source)) {}
  Program run();

 private:
  // parser.cc: statements.
  Body parse_body(std::initializer_list<std::string_view> ends);
  std::unique_ptr<Statement> parse_statement();
  std::unique_ptr<Statement> parse_if();
  std::unique_ptr<Statement> parse_for();
  std::unique_ptr<Statement> parse_set();
  std::unique_ptr<Statement> parse_macro();
  std::unique_ptr<Statement> parse_call_block();
  std::unique_ptr<Statement> parse_filter_block();
  std::unique_ptr<Statement> parse_with();
  std::unique_ptr<Statement> parse_print();
  std::unique_ptr<Statement> parse_generation();
  std::unique_ptr<Statement> parse_loop_control(Action action);
  void parse_signature(Statement& macro);
  void parse_macro_body(Statement& macro, std::string_view end);
  Target parse_target(bool with_namespace, bool with_tuple);
  Target parse_target_element(bool with_namespace);

  // parser_expressions.cc: the longest that begins here.
  struct TupleRules {
    bool conditional = true;         // an inline `if` may follow
    bool in_parentheses = false;     // () is a tuple
    std::string_view end_word = {};  // a name that ends it
  };
  ExpressionPtr parse_tuple(TupleRules rules);
  bool is_tuple_end(std::string_view end_word) const;
  ExpressionPtr parse_expression();
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_compare();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concatenation();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filter);
  ExpressionPtr parse_primary();
  ExpressionPtr parse_strings();
  ExpressionPtr parse_number();
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_postfix(ExpressionPtr node);
  ExpressionPtr parse_subscript(ExpressionPtr node);
  ExpressionPtr parse_slice();
  ExpressionPtr parse_filters_and_tests(ExpressionPtr node);
  // `first`: a pipe has been read already, or none is needed.
  ExpressionPtr parse_filters(ExpressionPtr node, bool first);
  ExpressionPtr parse_test(ExpressionPtr node);
  ExpressionPtr parse_call(ExpressionPtr node);
  void parse_arguments(ArgumentNodes& arguments);
  void check_named_function(const Expression& node);
  ExpressionPtr parse_name();

  ExpressionPtr make(Operation operation, Offset at) const;
  ExpressionPtr make(Operation operation, Offset at, ExpressionPtr a, ExpressionPtr b = nullptr);
  void adopt(Expression& parent, ExpressionPtr child);
  void deepen(Expression& parent, const Expression* child) const;
  void deepen_by_arguments(Expression& parent) const;

  const Token& current() const { return tokens_[next_]; }
  const Token& take() { return tokens_[next_ == tokens_.size() - 1 ? next_ : next_++]; }
  bool at_op(std::string_view text) const {
    return current().kind == TokenKind::op && current().text == text;
  }
  bool at_name(std::string_view text) const {
    return current().kind == TokenKind::name && current().text == text;
  }
  bool skip_op(std::string_view text);
  bool skip_name(std::string_view text);
  void expect_op(std::string_view text);
  void expect_name(std::string_view text);
  std::string expect_identifier(const char* what);
  void expect_kind(TokenKind kind, const char* what);
  std::string describe(const Token& token) const;
  Symbol symbol(std::string_view name);
  [[noreturn]] void fail(Offset at, const std::string& problem,
                         TemplateFault fault = TemplateFault::syntax) const;

  // Counts what nests, while it lives.
  class Nesting {
   public:
    explicit Nesting(Parser& parser);
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Parser& parser_;
  };

  std::string_view source_;
  int max_depth_;
  int nesting_ = 0;
  int loops_ = 0;  // around this statement, in the same macro
  std::vector<Token> tokens_;
  std::size_t next_ = 0;
  std::map<std::string, Symbol, std::less<>> symbols_;
  Program program_;
  std::vector<Statement*> macros_;  // around this statement
};

}  // namespace touchstone::inline v0::io::chat
